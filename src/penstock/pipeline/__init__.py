"""The data pipeline: the only room that knows Spark."""
