"""HTTP for a store with several shards: where each request goes, and how the answers of all shards are merged."""
