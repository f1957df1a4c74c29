"""Quotas: how much one identity, and one address, may use of the broker."""
