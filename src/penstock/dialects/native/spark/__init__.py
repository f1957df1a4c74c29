"""For stream processors, in Arrow: rows staged and committed as batches, and messages claimed with a lease."""
