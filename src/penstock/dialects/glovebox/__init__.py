"""Glovebox: messages over WebSocket, with a notice at every stage of their life."""
