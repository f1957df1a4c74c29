"""Sockets: bytes in, bytes out, for HTTP, WebSocket and lines of JSON."""
