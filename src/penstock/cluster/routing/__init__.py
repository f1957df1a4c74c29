"""Where each command and each question goes, and how the answers of several shards join."""
