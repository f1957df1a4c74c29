"""More than one shard, process or machine: where commands and questions go, and how they get there (ADR 39)."""
