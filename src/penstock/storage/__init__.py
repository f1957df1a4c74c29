"""The log: events as bytes on disk, whole or not at all."""
