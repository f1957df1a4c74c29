"""Reading with Spark: the events of a log, or the messages of a queue."""
