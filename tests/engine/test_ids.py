"""Message ids: a UUID that says where a message is, and cannot be guessed."""

from __future__ import annotations

from uuid import RFC_4122, UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.ids import MessageIds, is_uuid
from penstock.limits import QUEUE_NUMBER_MAX, SEQUENCE_MAX, SHARD_MAX
from tests.support.effort import effort

KEY = bytes(range(16))
queues = st.integers(1, QUEUE_NUMBER_MAX)
sequences = st.integers(1, SEQUENCE_MAX)
shards = st.integers(0, SHARD_MAX)


@effort(300)
@given(shards, queues, sequences)
def test_an_id_finds_its_message(shard: int, queue: int, sequence: int) -> None:
    ids = MessageIds(KEY, shard)
    assert ids.find(ids.make(queue, sequence)) == (queue, sequence)


@pytest.mark.parametrize("queue", [1, QUEUE_NUMBER_MAX])
@pytest.mark.parametrize("sequence", [1, (1 << 20) - 1, 1 << 20, SEQUENCE_MAX])
@pytest.mark.parametrize("shard", [0, SHARD_MAX])
def test_the_bounds_of_the_numbering_fit_into_an_id(shard: int, queue: int, sequence: int) -> None:
    ids = MessageIds(KEY, shard)
    assert ids.find(ids.make(queue, sequence)) == (queue, sequence)


@effort(100)
@given(shards, queues, sequences)
def test_an_id_is_a_version_8_uuid_in_canonical_form(shard: int, queue: int, sequence: int) -> None:
    text = MessageIds(KEY, shard).make(queue, sequence)
    parsed = UUID(text.decode())
    assert (str(parsed).encode(), parsed.variant, parsed.version) == (text, RFC_4122, 8)
    assert is_uuid(text)


@effort(100)
@given(queues, sequences)
def test_an_id_may_be_written_in_capitals(queue: int, sequence: int) -> None:
    ids = MessageIds(KEY)
    text = ids.make(queue, sequence).upper()
    assert is_uuid(text)
    assert ids.find(text) == (queue, sequence)


@effort(200)
@given(queues, sequences, st.integers(0, 127))
def test_an_id_with_any_one_bit_flipped_finds_nothing(queue: int, sequence: int, bit: int) -> None:
    ids = MessageIds(KEY)
    forged = UUID(int=UUID(ids.make(queue, sequence).decode()).int ^ (1 << bit))
    assert ids.find(str(forged).encode()) is None


@effort(100)
@given(queues, sequences)
def test_an_id_of_another_broker_or_shard_finds_nothing(queue: int, sequence: int) -> None:
    text = MessageIds(KEY, shard=1).make(queue, sequence)
    assert MessageIds(bytes(16), shard=1).find(text) is None
    assert MessageIds(KEY, shard=2).find(text) is None


@pytest.mark.parametrize("text", [b"", b"f" * 36, b"f" * 4000, b"0x" + b"1" * 34, b"_" * 36, "٢".encode() * 18])
def test_what_is_not_an_id_at_all_finds_nothing(text: bytes) -> None:
    assert MessageIds(KEY).find(text) is None


def test_a_random_uuid_finds_nothing() -> None:
    assert MessageIds(KEY).find(b"d2719b4c-4e34-4b6f-9a3e-0c1f4a6d8b21") is None
    assert MessageIds(KEY).find(b"00000000-0000-0000-0000-000000000000") is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "d2719b4c4e344b6f9a3e0c1f4a6d8b21",
        "d2719b4c-4e34-4b6f-9a3e-0c1f4a6d8b2",
        "d2719b4c-4e34-4b6f-9a3e-0c1f4a6d8b21\n",
        "{d2719b4c-4e34-4b6f-9a3e-0c1f4a6d8b21}",
        "g2719b4c-4e34-4b6f-9a3e-0c1f4a6d8b21",
        "-2719b4c-4e34-4b6f-9a3e-0c1f4a6d8b21",
        "٢2719b4c-4e34-4b6f-9a3e-0c1f4a6d8b21",
    ],
)
def test_what_is_not_a_uuid_is_not_taken_for_one(text: str) -> None:
    assert not is_uuid(text.encode())


def test_neighbours_in_a_queue_do_not_show_each_others_check() -> None:
    ids = MessageIds(KEY)
    checks = {UUID(ids.make(1, sequence).decode()).int & ((1 << 40) - 1) for sequence in range(1, 2001)}
    assert len(checks) == 2000
