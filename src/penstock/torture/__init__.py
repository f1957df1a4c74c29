"""Torture: seeded traffic in every dialect, faults, and a checker over everything that the clients saw.

It knows the broker only through sockets and processes. `run` is the whole; `traffic/` has a file for each dialect,
`faults` what goes wrong, `history` what was seen, and `checker/` the rules that no history may violate.
"""
