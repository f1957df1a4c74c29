"""The workers of one machine: where they accept connections, and how one that hangs is noticed."""
