"""The peers: brokers that people choose, each with an fsync before it acknowledges a publish.

One file a peer. Each starts its server on loopback, on the server's core, in a scratch directory, and
ends it. Clients write minimal frames on raw sockets, because a client library would be the limit.
"""
