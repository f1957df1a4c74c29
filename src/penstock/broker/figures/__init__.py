"""What is counted and measured while the broker works."""
