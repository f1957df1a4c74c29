"""Several machines on one store: which are there, and which of them has which shard."""
