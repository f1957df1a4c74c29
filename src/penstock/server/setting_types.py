"""Kinds of text that settings have. `settings.py` says what each accepts."""

from __future__ import annotations


class HostName(str):
    """A name or an address by which clients reach the broker."""


class Origin(str):
    """The origin of a web page as a browser sends it: scheme, host, and the port if it is not the usual one."""


class FileName(str):
    """The path of a file, or empty."""


class StoreUrl(str):
    """The address of a store, which may hold a password; none if it is not set."""

    def __repr__(self) -> str:
        return "<hidden>" if self else "''"


class Text(str):
    """Visible characters; none if it is not set."""
