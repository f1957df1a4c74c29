"""Sockets: bytes in, bytes out, for HTTP, WebSocket and JSON lines."""
