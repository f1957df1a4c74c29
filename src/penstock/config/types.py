"""Kinds of text that settings have, and how they are described. `settings.py` says what each accepts."""

from __future__ import annotations

from msgspec import Meta


class HostName(str):
    """A name or an address by which clients reach the broker."""


class Origin(str):
    """The origin of a web page as a browser sends it: scheme, host, and the port if it is not the usual one."""


class AddressText(str):
    """HOST:PORT, or empty."""


class FileName(str):
    """The path of a file, or empty."""


class StoreUrl(str):
    """The address of a store, which may hold a password; none if it is not set."""

    def __repr__(self) -> str:
        return "<hidden>" if self else "''"


class Text(str):
    """Visible characters; none if it is not set."""


def described(description: str) -> Meta:
    return Meta(description=description)


def between(least: float, most: float, description: str) -> Meta:
    return Meta(ge=least, le=most, description=description)


def above_0(most: float, description: str) -> Meta:
    return Meta(gt=0, le=most, description=description)
