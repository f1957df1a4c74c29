"""Backups: consistent copies of a data directory, made from a broker or from files, continued and restored."""
