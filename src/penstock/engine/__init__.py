"""The engine: what a message queue decides, and what each event changes. Pure: no clock, no file, no socket."""
