"""Serves the files of the console: compressed, with validators, and with headers that let nothing else run."""

from __future__ import annotations

import gzip
import hashlib
from functools import cache
from importlib import resources

import msgspec
from msgspec import Struct

from penstock.dialects.wire import http

_TYPES = {
    "html": b"text/html; charset=utf-8",
    "js": b"text/javascript; charset=utf-8",
    "css": b"text/css; charset=utf-8",
    "svg": b"image/svg+xml",
}
_POLICY = b"; ".join(
    (
        b"default-src 'self'",
        b"img-src 'self' blob:",
        b"base-uri 'none'",
        b"form-action 'none'",
        b"frame-ancestors 'none'",
        b"require-trusted-types-for 'script'",
    )
)
_HEADERS = (
    b"Content-Security-Policy: " + _POLICY + b"\r\n"
    b"X-Content-Type-Options: nosniff\r\n"
    b"Referrer-Policy: no-referrer\r\n"
    b"Cross-Origin-Opener-Policy: same-origin\r\n"
    b"Cross-Origin-Resource-Policy: same-origin\r\n"
    b"Cache-Control: no-cache\r\n"  # Kept, and asked for again with its validator.
    b"Vary: Accept-Encoding\r\n"
)


class _File(Struct, frozen=True):
    body: bytes
    compressed: bytes
    headers: bytes
    tag: bytes


class Console:
    """The pages and files below `/` and `/console/`. They hold no data, so they need no token."""

    def __init__(self, facts: dict[str, object]) -> None:
        """`facts`: what the page knows of the broker before it asks for anything."""
        self._page = _file("index.html", msgspec.json.encode(facts).replace(b'"', b"&quot;"))
        self._door = _file("door.html")
        self.routes: http.Routes = {
            (b"", 1): {b"GET": self._get_page, b"HEAD": self._get_page},
            (b"console", 2): {b"GET": self._get_file, b"HEAD": self._get_file},
            (b"console", 3): {b"GET": self._get_file, b"HEAD": self._get_file},
        }

    def door(self, headers: http.Headers) -> http.Response | None:
        """For a browser that follows a link on another site: a page that leads to the console. None: it does not."""
        if headers.get(b"sec-fetch-mode") != b"navigate" or headers.get(b"sec-fetch-dest") != b"document":
            return None
        return http.Response(403, self._door.body, self._door.headers)

    def _get_page(self, request: http.Request, _: bytes) -> http.Response:
        return _answer(request, self._page)

    def _get_file(self, request: http.Request, _: bytes) -> http.Response:
        name = b"/".join(http.segments_of(request.target)[1:]).decode("latin-1")
        if name not in _names():
            return http.not_found(request)
        return _answer(request, _stored(name))


def _answer(request: http.Request, file: _File) -> http.Response:
    if request.headers.get(b"if-none-match") == file.tag:
        return http.Response(304, b"", file.headers)
    if b"gzip" in request.headers.get(b"accept-encoding", b""):
        return http.Response(200, file.compressed, file.headers + b"Content-Encoding: gzip\r\n")
    return http.Response(200, file.body, file.headers)


@cache
def _names() -> frozenset[str]:
    """Every file that may be asked for: nothing outside of this list is read."""
    root = resources.files("penstock.console").joinpath("static")
    folders = {"": root, "lib/": root.joinpath("lib"), "pages/": root.joinpath("pages")}
    found = [prefix + file.name for prefix, folder in folders.items() for file in folder.iterdir() if file.is_file()]
    return frozenset(found) - {"index.html", "door.html"}


@cache
def _stored(name: str) -> _File:
    return _file(name)


def _file(name: str, facts: bytes = b"") -> _File:
    body = resources.files("penstock.console").joinpath("static", *name.split("/")).read_bytes()
    body = body.replace(b"{{facts}}", facts)
    tag = b'"%b"' % hashlib.sha256(body).hexdigest()[:32].encode()
    kind = _TYPES[name.rpartition(".")[2]]
    headers = b"Content-Type: %b\r\nETag: %b\r\n%b" % (kind, tag, _HEADERS)
    return _File(body, gzip.compress(body, 9, mtime=0), headers, tag)
