"""The lake: tables that the pipeline makes from the events of a log."""
