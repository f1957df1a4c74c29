"""Penstock: one durable message queue that five kinds of client already know how to talk to."""

__version__ = "0.1.0"
