"""Trees: nested containers with arrays as leaves, taken apart and put together by optree."""
