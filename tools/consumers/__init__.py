"""Tables of what other libraries do with arrays that are spread over devices."""
