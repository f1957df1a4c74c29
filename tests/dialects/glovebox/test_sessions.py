"""Glovebox sessions that outlive their connections."""

from __future__ import annotations

import pytest

from penstock.dialects.glovebox import sessions as glovebox_sessions
from tests.support.glovebox import DURABLE, Client, House, bounded, fetch, live, post, until


@live
async def test_a_session_that_is_not_durable_or_not_known_begins_anew(house: House) -> None:
    plain = Client(house)
    number = (await plain.hear())["id"]
    plain.lose()
    for unknown in (str(number), "77", "", "-1", "x", "9" * 400, "²"):
        again = Client(house, reconnect_as=unknown)
        assert (await again.hear())["id"] > number


@bounded(session_seconds=0.01)
async def test_a_session_whose_client_stays_away_ends_and_gives_back_what_never_went_out(house: House) -> None:
    await house.fill("sent", "kept")
    first = Client(house, **DURABLE)
    number = (await first.hear())["id"]
    first.say(fetch())
    await first.hear()
    first.say(fetch(), post(notify=["finish"], label=1))
    first.lose()
    other = await house.client()
    other.say(fetch(block_timeout=10))
    assert (await other.hear())["body"] in ("kept", "hello")
    await until(lambda: house.glovebox._sessions.find(number) is None)
    await house.settled()
    assert house.glovebox._sessions.kept_bytes == 0
    assert not house.loop.executor.followers.by_place


@bounded(sessions_max=1)
async def test_the_session_that_was_lost_first_makes_room_for_another(house: House) -> None:
    numbers = []
    for _ in range(3):
        client = Client(house, **DURABLE)
        numbers.append((await client.hear())["id"])
        client.lose()
    assert [bool(house.glovebox._sessions.find(number)) for number in numbers] == [False, False, True]


def test_all_that_is_kept_is_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glovebox_sessions, "LOST_SESSIONS_BYTES_MAX", 1500)

    @live
    async def story(house: House) -> None:
        numbers = []
        for _ in range(3):
            client = Client(house, **DURABLE)
            numbers.append((await client.hear())["id"])
            client.say(*[post() for _ in range(5)])
            client.lose()
        await house.settled()
        kept = [bool(house.glovebox._sessions.find(number)) for number in numbers]
        assert kept == [False, False, True]
        assert house.glovebox._sessions.kept_bytes <= 1500

    story()
