"""What the protocols share: HTTP and frames as values, bounds, and encodings."""
