"""Etzel: JSON commands over lines and WebSocket, for workers that sleep until there is work."""
