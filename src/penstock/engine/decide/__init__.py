"""Decides commands: reads the state, returns events and an answer, and changes nothing."""
