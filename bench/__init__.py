"""Benchmarks: Penstock, the limit of its design, and other brokers, all measured the same way in one run."""
