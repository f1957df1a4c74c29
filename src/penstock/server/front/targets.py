"""The target of a request with other parameters."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode


def target_with(target: bytes, **changes: object) -> bytes:
    """With these parameters in place of what it has; None takes one away."""
    path, _, query = target.partition(b"?")
    pairs = [pair for pair in parse_qsl(query.decode("latin-1"), keep_blank_values=True) if pair[0] not in changes]
    pairs += [(name, str(value)) for name, value in changes.items() if value is not None]
    return path + (b"?" + urlencode(pairs).encode() if pairs else b"")
