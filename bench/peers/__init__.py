"""The peers: widely used brokers, each set to fsync before it acknowledges a publish.

One file for each peer. It starts the server on loopback, on the server's core, in a scratch directory, and
stops it. Clients write minimal frames to raw sockets, because a client library would be the bottleneck.
"""
