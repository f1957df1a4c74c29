"""The single writer: commands in, decisions, commits, answers out."""
