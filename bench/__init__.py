"""Benchmarks: Penstock, the limit of its design, and its peers, measured the same way in one run."""
