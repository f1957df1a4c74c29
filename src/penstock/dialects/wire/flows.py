"""Flows of values as streams of bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.model.streams import Sink, Source


class Rendered:
    """The pieces of a source, rendered one by one."""

    def __init__(self, source: Source, render: Callable[[Any], bytes]) -> None:
        self._source, self._render = source, render
        self.finish, self.close = source.finish, source.close

    def pull(self, sink: Sink) -> None:
        self._sink = sink
        self.end, self.fail, self.cut_off = sink.end, sink.fail, sink.cut_off
        self._source.pull(self)

    def give(self, data: Any) -> None:
        self._sink.give(self._render(data))
