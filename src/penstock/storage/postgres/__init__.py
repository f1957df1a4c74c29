"""The log in PostgreSQL: what is acknowledged is there, and the data directory holds a copy that may be lost.

`store.py` is the way in. One row a batch, one table a part of the log, one row a shard that says who owns it.
"""
