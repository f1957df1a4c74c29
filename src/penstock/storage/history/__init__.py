"""The Object History on disk, which follows the log."""
