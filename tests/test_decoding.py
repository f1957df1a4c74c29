"""Types are decoded by any thread, also by several for the first time."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import penstock
from penstock.decoding import convert, decode_json, decode_msgpack, in_words

SOURCES = Path(penstock.__file__).parent

RACE = """
import sys, threading, types
from typing import Optional
from msgspec import Struct
from penstock.decoding import decode_json

sys.setswitchinterval(1e-6)


def learn(kind, start):
    start.wait()
    assert decode_json(b'{"field_29": [2]}', kind).field_29 == [2]


for number in range(500):
    fields = {f"field_{each}": "Optional[list[int]]" for each in range(30)}
    body = {"__annotations__": fields, "__module__": __name__, **dict.fromkeys(fields)}
    kind = types.new_class(f"Kind{number}", (Struct,), exec_body=lambda names, body=body: names.update(body))
    start = threading.Barrier(3)
    threads = [threading.Thread(target=learn, args=(kind, start)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print("done")
"""


class Point(msgspec.Struct):
    x: int


def test_threads_that_decode_a_type_for_the_first_time_do_not_crash() -> None:
    ended = subprocess.run([sys.executable, "-c", RACE], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done\n", "")


def test_bytes_and_objects_become_types() -> None:
    assert decode_json(b'{"x": 1}', Point) == Point(1)
    assert decode_msgpack(msgspec.msgpack.encode({"x": 2}), Point) == Point(2)
    assert convert({"x": 3}, Point) == Point(3)
    assert decode_json("[1, 2]", list[int]) == [1, 2]


@pytest.mark.parametrize(("data", "error"), [(b"{", msgspec.DecodeError), (b'{"x": ""}', msgspec.ValidationError)])
def test_what_is_wrong_is_said_as_msgspec_says_it(data: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        decode_json(data, Point)


def test_nobody_lets_msgspec_learn_a_type_elsewhere() -> None:
    """But for decoders that are made while a module is imported."""
    found = [
        f"{path.relative_to(SOURCES)}:{call.lineno}"
        for path in SOURCES.rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call)
        and ast.unparse(call.func) in ("msgspec.json.decode", "msgspec.msgpack.decode")
        and any(keyword.arg == "type" for keyword in call.keywords)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("sentence", "words"),
    [
        ("Expected `float`, got `str` - at `$.lease`", "lease must be a number, not text"),
        ("Expected `int` >= 0 - at `$.limit`", "limit must be a whole number >= 0"),
        ("Expected `int | null`, got `str` - at `$[0].x`", "[0].x must be a whole number or null, not text"),
        ("Expected `object`, got `array`", "the document must be an object, not a list"),
        ("Object missing required field `x`", "Object missing required field `x`"),
    ],
)
def test_a_wrong_value_is_named_in_words(sentence: str, words: str) -> None:
    assert in_words(sentence) == words
