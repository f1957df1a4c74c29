"""The engine: decides commands, and applies events to the state. Pure: no clock, no file, no socket."""
