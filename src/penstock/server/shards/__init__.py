"""Several shards over several processes: where each command goes, and the links between workers (ADR 39)."""
