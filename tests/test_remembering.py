"""What is remembered of texts is bounded, in number and in length."""

from __future__ import annotations

import functools
import gc
import importlib
import inspect
import pkgutil

import pytest

import penstock
from penstock.remembering import TEXT_LENGTH_MAX, remembered

BOUNDED = {
    "penstock.console.files._stored": "the files of the console",
    "penstock.dialects.nq._check_queue": "it refuses what is long, and that is not remembered",
    "penstock.dialects.wire.http.checked_text": "as above",
    "penstock.dialects.wire.http.queue_name": "as above",
    "penstock.broker.recovery._read": "the zones of the system: others are not remembered",
    "penstock.storage.memory._header_of": "its texts are batches of tests and simulations",
}


def test_a_text_is_worked_out_once_and_forgotten_when_there_are_too_many() -> None:
    asked: list[str] = []

    @remembered(2)
    def length(text: str) -> int:
        asked.append(text)
        return len(text)

    assert [length(text) for text in ("a", "bb", "a", "bb", "ccc", "a")] == [1, 2, 1, 2, 3, 1]
    assert asked == ["a", "bb", "ccc", "a"]


def test_a_long_text_and_what_was_refused_are_not_remembered() -> None:
    asked: list[bytes] = []

    @remembered(10)
    def first(text: bytes) -> int:
        asked.append(text)
        return text[0]

    for text in (b"x" * TEXT_LENGTH_MAX, b"x" * (TEXT_LENGTH_MAX + 1), b""):
        for _ in range(2):
            if text:
                first(text)
            else:
                with pytest.raises(IndexError):
                    first(text)
    assert list(map(len, asked)) == [TEXT_LENGTH_MAX, TEXT_LENGTH_MAX + 1, TEXT_LENGTH_MAX + 1, 0, 0]


def test_no_other_cache_remembers_texts_of_strangers() -> None:
    for room in ("dialects", "engine", "model", "server", "storage"):
        package = importlib.import_module(f"penstock.{room}")
        for module in pkgutil.walk_packages(package.__path__, f"{penstock.__name__}.{room}."):
            importlib.import_module(module.name)
    caches = [each for each in gc.get_objects() if isinstance(each, functools._lru_cache_wrapper)]
    ours = [each for each in caches if str(each.__module__).startswith("penstock.")]
    of_texts = {
        f"{each.__module__}.{each.__qualname__}"
        for each in ours
        if any(parameter.annotation in ("str", "bytes") for parameter in inspect.signature(each).parameters.values())
    }
    assert of_texts <= BOUNDED.keys()
