"""Batches as tables of numpy arrays: one row for every letter of every record. `storage/arrow` wraps them."""
