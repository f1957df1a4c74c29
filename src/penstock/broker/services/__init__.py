"""Background services beside the writer: snapshots, readers of the log, push, searches, jobs."""
