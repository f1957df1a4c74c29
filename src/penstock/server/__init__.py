"""The shells around the engine: sockets, the clock, the disk thread."""
