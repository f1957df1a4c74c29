"""Several brokers on one store: which are there, which of them has which shard, and when one hands over."""
