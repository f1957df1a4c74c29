"""No bytes break a decoder: those that once did, and some that are new, are tried with every run of the tests."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from itertools import islice

import pytest

from tests.fuzz.corpus import HERE, known_inputs
from tests.fuzz.mutation import mutations
from tests.fuzz.registry import TARGETS
from tests.fuzz.target import Target, TooSlowError, run_bounded
from tests.support.effort import LONG

SECONDS = 60.0 if LONG else 0.3
SEED = 20_261_116
MEMORY_BYTES_MAX = 64 << 20
MEMORY_PER_BYTE_MAX = 100
KEPT_BYTES_MAX = 1 << 20

each_target = pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)


@each_target
def test_known_inputs_break_nothing_and_take_little_memory(target: Target) -> None:
    for data in known_inputs(target):
        run_bounded(target, data)
    tracemalloc.start()
    try:
        for data in islice(reversed(known_inputs(target)), 100):
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            run_bounded(target, data)
            taken = tracemalloc.get_traced_memory()[1] - before
            assert taken < MEMORY_BYTES_MAX + MEMORY_PER_BYTE_MAX * len(data), data[:100]
    finally:
        tracemalloc.stop()


@each_target
def test_changes_to_known_inputs_break_nothing(target: Target) -> None:
    """`make fuzz` tries others, for longer."""
    until = time.monotonic() + SECONDS
    for tried, data in enumerate(mutations(known_inputs(target), SEED)):
        if time.monotonic() > until:
            break
        try:
            run_bounded(target, data)
        except Exception as error:
            raise AssertionError(f"{target.name}: seed {SEED}, input {tried}: {data!r}") from error


def test_what_is_kept_is_little_and_belongs_to_a_target() -> None:
    folders = [path for path in HERE.iterdir() if path.is_dir()]
    assert {path.name for path in folders} <= TARGETS.keys()
    assert sum(path.stat().st_size for path in HERE.rglob("*") if path.is_file()) < KEPT_BYTES_MAX


def loops(_: bytes) -> None:
    while True:
        pass


def fails_on_ff(data: bytes) -> None:
    data.decode()


@pytest.mark.parametrize(("run", "error"), [(loops, TooSlowError), (fails_on_ff, UnicodeDecodeError)])
def test_a_decoder_that_fails_or_never_ends_is_found(
    run: Callable[[bytes], None], error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.fuzz.target.SECONDS_MAX", 0.05)
    target = Target("broken", run, lambda: [b"hello"])
    with pytest.raises(error):
        list(map(partial(run_bounded, target), islice(mutations(known_inputs(target), 1), 1000)))


def test_the_same_seed_makes_the_same_inputs() -> None:
    known = [b"one", b"two"]
    assert list(islice(mutations(known, 7), 100)) == list(islice(mutations(known, 7), 100))
