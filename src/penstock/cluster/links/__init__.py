"""Links between processes: the frames that cross, and both ends of them."""
