"""HTTP/1.1 over a raw socket."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from tests.support.raw_client import RawClient

Headers = list[tuple[str, str]]


@dataclass(frozen=True)
class Part:
    """One part of a multipart body."""

    headers: Headers
    body: bytes

    def header(self, name: str) -> str | None:
        return find_header(self.headers, name)


@dataclass(frozen=True)
class Response:
    status: int
    reason: str
    headers: Headers
    body: bytes
    interim: list[int] = field(default_factory=list)
    """The 1xx statuses that came before."""

    def header(self, name: str) -> str | None:
        return find_header(self.headers, name)

    def json(self) -> Any:
        return json.loads(self.body)

    def parts(self) -> list[Part]:
        content_type = self.header("Content-Type") or ""
        assert content_type.startswith("multipart/mixed"), f"not multipart/mixed: {content_type!r}"
        return split_multipart(content_type, self.body)

    def messages(self) -> list[Part]:
        """The received messages, whether they came as a plain body or as parts."""
        if self.status == 204:
            return []
        if (self.header("Content-Type") or "").startswith("multipart/mixed"):
            return self.parts()
        return [Part(self.headers, self.body)]


class Connection(RawClient):
    """A client connection that is read response by response, so that pipelining can be seen."""

    def send_request(
        self, method: str, target: str, headers: dict[str, str] | None = None, body: bytes | None = None
    ) -> None:
        self.send(encode_request(method, target, headers, body))

    def request(
        self, method: str, target: str, headers: dict[str, str] | None = None, body: bytes | None = None
    ) -> Response:
        self.send_request(method, target, headers, body)
        return self.read_response(to=method)

    def refused_early(self, head: str, size: int) -> Response:
        """Sends a body in two halves, the second one when the answer has come."""
        self.send(f"{head}\r\nHost: test\r\nContent-Length: {size}\r\n\r\n".encode() + b" " * (size // 2))
        self.wait_until_answered()
        self.send(b" " * (size - size // 2))
        return self.read_response()

    def read_response(self, to: str = "GET") -> Response:
        """The next whole response; `to` is the method it answers, since a HEAD has no body."""
        interim: list[int] = []
        while True:
            status, reason, headers = self._read_head()
            if status >= 200:
                break
            interim.append(status)
        body = b"" if to == "HEAD" or status in (204, 304) else self._read_body(headers)
        return Response(status, reason, headers, body, interim)

    def begin(self, target: str, headers: dict[str, str] | None = None) -> Response:
        """Asks for a stream: its head, without the body."""
        self.send_request("GET", target, headers)
        status, reason, received = self._read_head()
        return Response(status, reason, received, b"")

    def read_chunk(self) -> bytes:
        """The next chunk of a stream; empty at its end."""
        size = int(self._read_until(b"\r\n").split(b";")[0], 16)
        chunk = self._read_exactly(size)
        assert self._read_until(b"\r\n") == b"", "a chunk must end with CRLF"
        return chunk

    def read_interim(self) -> int:
        """The status of a 1xx response that should come next."""
        return self._read_head()[0]

    def _read_head(self) -> tuple[int, str, Headers]:
        head = self._read_until(b"\r\n\r\n").decode("latin-1")
        first, *lines = head.split("\r\n")
        match = re.fullmatch(r"HTTP/1\.1 (\d{3}) ?(.*)", first)
        assert match, f"not a status line: {first!r}"
        return int(match[1]), match[2], parse_headers(lines)

    def _read_body(self, headers: Headers) -> bytes:
        if (find_header(headers, "Transfer-Encoding") or "").lower() == "chunked":
            return self._read_chunks()
        length = find_header(headers, "Content-Length")
        if length is None:
            return self.read_to_end()
        return self._read_exactly(int(length))

    def _read_chunks(self) -> bytes:
        whole = bytearray()
        while size := int(self._read_until(b"\r\n").split(b";")[0], 16):
            whole += self._read_exactly(size)
            assert self._read_until(b"\r\n") == b"", "a chunk must end with CRLF"
        while self._read_until(b"\r\n"):
            pass
        return bytes(whole)


def encode_request(
    method: str, target: str, headers: dict[str, str] | None = None, body: bytes | None = None
) -> bytes:
    fields = {"Host": "penstock.localhost"} | (headers or {})
    lines = [f"{method} {target} HTTP/1.1", *[f"{name}: {value}" for name, value in fields.items()]]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("utf-8") + (body or b"")


def encode_multipart(parts: list[tuple[dict[str, str], bytes]], boundary: str = "penstock-test") -> bytes:
    whole = bytearray()
    for headers, body in parts:
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        whole += f"--{boundary}\r\n{head}\r\n".encode() + body + b"\r\n"
    return bytes(whole) + f"--{boundary}--\r\n".encode()


def split_multipart(content_type: str, body: bytes) -> list[Part]:
    match = re.search(r'boundary="?([^";]+)"?', content_type)
    assert match, f"no boundary in {content_type!r}"
    delimiter = b"\r\n--" + match[1].encode()
    _preamble, *pieces, closing = (b"\r\n" + body).split(delimiter)
    assert closing.startswith(b"--"), f"the multipart body does not end with its boundary: {body[-200:]!r}"
    return [split_part(piece) for piece in pieces]


def split_part(piece: bytes) -> Part:
    assert piece.startswith(b"\r\n"), f"no line end after a boundary: {piece[:80]!r}"
    if piece.startswith(b"\r\n\r\n"):
        return Part([], piece[4:])
    head, gap, body = piece[2:].partition(b"\r\n\r\n")
    assert gap, f"a part without the empty line after its headers: {piece[:200]!r}"
    return Part(parse_headers(head.decode("latin-1").split("\r\n")), body)


def parse_headers(lines: list[str]) -> Headers:
    headers: Headers = []
    for line in lines:
        name, colon, value = line.partition(":")
        assert colon, f"not a header line: {line!r}"
        headers.append((name, value.strip()))
    return headers


def find_header(headers: Headers, name: str) -> str | None:
    """The value of a header that may come once; coming twice is a failure."""
    values = [value for key, value in headers if key.lower() == name.lower()]
    assert len(values) <= 1, f"{name} came {len(values)} times: {values}"
    return values[0] if values else None
