"""The protocols, without I/O: requests in, commands out; answers in, bytes out."""
