"""Arrays in files: what files hold, how tensors map to others, and how they get in and out."""
