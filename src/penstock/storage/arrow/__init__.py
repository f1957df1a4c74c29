"""The log as Arrow tables."""
