"""What files hold: tensors as boxes at byte ranges, whatever the format."""
