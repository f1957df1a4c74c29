"""The log on disk: batches in segments, group commit, recovery, and readers beside the writer."""
