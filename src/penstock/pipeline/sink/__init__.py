"""Writing with Spark: rows become messages."""
