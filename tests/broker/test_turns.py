"""Whoever has much to do takes turns, and stands back for light requests."""

from __future__ import annotations

import asyncio

import pytest

from penstock.broker.quotas.meter import Meter
from penstock.broker.quotas.quotas import Quotas
from penstock.broker.turns import Turns
from penstock.config.quotas import QuotaConfig, QuotaLimits
from penstock.limits import TURN_CROWDED_PARTS_MAX, TURN_QUIET_SECONDS, TURN_REST
from tests.support.live_loop import until


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Digger:
    """Has so many parts to do, and notes whose turn it was."""

    def __init__(self, name: str, parts: int, done: list[str], meter: Meter | None = None) -> None:
        self.meter = meter
        self.name = self.client = name
        self.parts = parts
        self.was_cheap = False
        self._done = done

    def take_turn(self, *, crowded: bool) -> bool:
        self.parts -= 1
        self._done.append(self.name)
        return self.parts > 0


def test_whoever_has_much_to_do_takes_turns_with_the_others() -> None:
    async def story() -> list[str]:
        turns, done = Turns(), list[str]()
        diggers = [Digger(name, parts, done) for name, parts in (("a", 4), ("b", 2), ("c", 3))]
        for digger in diggers:
            turns.join(digger)
        turns.join(diggers[0])  # It is there already.
        await until(lambda: not any(digger.parts for digger in diggers))
        return done

    assert "".join(asyncio.run(story())) == "abcabcaca"


def test_whoever_has_much_to_do_stands_back_while_a_light_request_waits_for_the_disk() -> None:
    async def story() -> tuple[int, int]:
        busy, clock = True, Clock()
        turns, done = Turns(lambda: busy, clock), list[str]()
        turns._ran_at = clock.now  # Just now.
        turns.light += 1
        turns.join(Digger("a", 1000, done))
        await asyncio.sleep(0)
        waited = len(done)
        busy = False
        turns.after_commit()
        await asyncio.sleep(0)
        return waited, len(done)

    before, after = asyncio.run(story())
    assert (before, after > 0) == (0, True)


def test_nobody_stands_back_for_ever() -> None:
    async def story() -> None:
        turns, done = Turns(lambda: True, Clock()), list[str]()
        turns.light += 1
        turns.join(Digger("a", 100, done))
        await until(lambda: len(done) == 100)

    asyncio.run(asyncio.wait_for(story(), 60))


def test_a_defect_in_one_turn_is_logged_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        meter = client = None
        was_cheap = False

        def take_turn(self, *, crowded: bool) -> bool:
            raise AssertionError("on purpose")

    async def story() -> list[str]:
        turns, done = Turns(), list[str]()
        turns.join(Broken())
        turns.join(Digger("a", 2, done))
        await until(lambda: len(done) == 2)
        return done

    assert asyncio.run(story()) == ["a", "a"]
    assert [record.message for record in caplog.records] == ["turn_failed"]


def test_the_parts_of_very_many_are_small() -> None:
    class Measured(Digger):
        def take_turn(self, *, crowded: bool) -> bool:
            self.crowded = crowded
            return super().take_turn(crowded=crowded)

    async def story(count: int) -> bool:
        turns, done = Turns(), list[str]()
        diggers = [Measured("a", 1, done) for _ in range(count)]
        for digger in diggers:
            turns.join(digger)
        await until(lambda: len(done) == count)
        return diggers[0].crowded

    assert not asyncio.run(story(10))
    assert asyncio.run(story(1000))


@pytest.mark.parametrize("light", [0, 1])
def test_only_a_few_of_many_that_come_together_begin_at_once(light: int) -> None:
    async def story() -> tuple[list[bool], int]:
        clock = Clock()
        turns, done = Turns(clock=clock), list[str]()
        turns.light += light
        began = []
        for _ in range(1000):
            began.append(turns.begin(Digger("a", 1, done)))
            clock.now += 1 / 2048  # What the first part has taken.
        await until(lambda: len(done) == 1000)
        again = turns.begin(Digger("a", 1, done))
        return [*began, again], len(done)

    began, done = asyncio.run(story())
    assert began.count(True) == (3 if light else 21) + 1
    assert began[-1], "the next turn of the event loop is another one"
    assert done == 1001, "those that had to wait had their turn"


def test_a_client_that_used_up_its_time_has_its_next_turn_when_it_has_recovered() -> None:
    async def story() -> list[str]:
        clock = Clock()
        quotas = Quotas(QuotaConfig(address=QuotaLimits(work_seconds_per_second=1.0)), lambda _: True, clock)
        meter = Meter(quotas)
        meter.join(quotas.of_address("192.0.2.7"))

        class Slow(Digger):
            def take_turn(self, *, crowded: bool) -> bool:
                clock.now += 1.05
                return super().take_turn(crowded=crowded)

        turns, done = Turns(clock=clock), list[str]()
        for digger in (Slow("a", 2, done, meter), Digger("b", 5, done)):
            turns.join(digger)
        await until(lambda: len(done) == 7)
        assert not turns.begin(Slow("c", 1, done, meter)), "its other connections wait too"
        await until(lambda: len(done) == 8)
        return done

    assert "".join(asyncio.run(story())) == "abbbbbac"


# ── Who pays ─────────────────────────────────────────────────────────────────────────────────────────────────


class Payer(Digger):
    """One of several connections of a client, whose parts take so long."""

    def __init__(self, client: str, parts: int, done: list[str], clock: Clock, seconds: float = 0.0) -> None:
        super().__init__(client, parts, done)
        self._clock, self._seconds = clock, seconds

    def take_turn(self, *, crowded: bool) -> bool:
        self._clock.now += self._seconds
        return super().take_turn(crowded=crowded)


def test_many_connections_of_a_client_have_the_turns_of_one() -> None:
    async def story() -> list[str]:
        clock, done = Clock(), list[str]()
        turns = Turns(clock=clock)
        for digger in (*(Payer("a", 1, done, clock) for _ in range(5)), Payer("b", 3, done, clock)):
            turns.join(digger)
        await until(lambda: len(done) == 8)
        return done

    assert "".join(asyncio.run(story())) == "abababaa"


def test_the_client_that_has_spent_the_least_comes_next() -> None:
    async def story() -> list[str]:
        clock, done = Clock(), list[str]()
        turns = Turns(clock=clock)
        for digger in (Payer("a", 3, done, clock, seconds=0.0099), Payer("b", 30, done, clock, seconds=0.002)):
            turns.join(digger)
        await until(lambda: len(done) == 33)
        return done

    assert "".join(asyncio.run(story())).startswith("abbbbbabbbbbabbbbb")


def test_reads_that_all_take_about_as_long_do_not_crowd_out_each_other() -> None:
    """Where the limit of what is costly is between them, the cheaper ones are not light requests."""

    async def story() -> tuple[int, list[object]]:
        clock, decided = Clock(), list[object]()
        turns = Turns(clock=clock, decide=lambda: decided.append("decided"))
        client = Payer("batches", 1, [], clock)

        def receive(data: bytes) -> None:
            clock.now += len(data) / 1_000_000

        for _ in range(10):
            assert turns.handle(client, receive, bytes(100))
            assert turns.handle(client, receive, bytes(200))
        return turns.light, decided

    assert asyncio.run(story()) == (0, [])


def test_much_work_is_decided_where_it_was_read_and_paid_for() -> None:
    """A request is small and costs much: the next one of its client waits, and others do not."""

    async def story() -> tuple[list[object], float]:
        clock, seen = Clock(), list[object]()

        def decide() -> None:
            seen.append("decided")
            clock.now += 0.02

        def receive(data: bytes) -> None:
            seen.append(data)
            clock.now += len(data) / 1000

        turns = Turns(clock=clock, decide=decide)
        greedy, modest = Payer("greedy", 1, [], clock), Payer("modest", 1, [], clock)
        turns.light += 1
        seen.append(turns.handle(greedy, receive, b"12345"))
        await asyncio.sleep(0)  # The next turn of the event loop.
        turns.light += 1
        before = turns.light
        seen += [turns.handle(greedy, receive, b""), turns.handle(modest, receive, b""), turns.light - before]
        turns.join(greedy)
        for _ in range(1000):
            turns.light += 1
            turns._run()
            if not greedy.parts:
                break
            clock.now += 0.001
        return seen, clock.now - 1000.0

    seen, now = asyncio.run(story())
    assert seen == [b"12345", "decided", True, b"", False, True, 1, "decided"]
    assert now == pytest.approx(0.025 * (1 + TURN_REST) + 0.02, abs=0.002), "while light requests arrive, it rests"


def test_many_cheap_parts_pay_together_for_what_they_lead_to() -> None:
    async def story() -> list[int]:
        clock, done = Clock(), list[str]()

        def decide() -> None:
            clock.now += 0.0001 * len(done)

        turns, counts = Turns(clock=clock, decide=decide), list[int]()
        for number in range(TURN_CROWDED_PARTS_MAX):
            turns.join(Payer(str(number), 2, done, clock, seconds=0.000001))
        for _ in range(4):
            turns.light += 1
            turns._run()
            counts.append(len(done))
            clock.now += TURN_REST * 0.001
        return counts

    assert asyncio.run(story()) == [24, 24, 24, 48]


def test_a_read_that_leads_to_much_was_not_light() -> None:
    clock = Clock()
    turns = Turns(clock=clock)
    turns.light += 1
    turns.note_heavy()
    turns.note_heavy()
    assert (turns.light, turns.crowded(clock.now)) == (0, False)
    turns.light += 1
    assert turns.crowded(clock.now)
    turns.spend(1.0)
    assert turns._rest_until == pytest.approx(turns._clock() + TURN_REST)


def test_nobody_rests_who_disturbs_no_light_request() -> None:
    async def story() -> float:
        clock, done = Clock(), list[str]()
        turns = Turns(clock=clock)
        turns.light += 1
        turns.join(Payer("a", 10, done, clock, seconds=0.05))
        await until(lambda: clock.now > 1000.0)
        clock.now += TURN_QUIET_SECONDS
        await until(lambda: len(done) == 10)
        return clock.now - 1000.0

    assert asyncio.run(story()) == pytest.approx(10 * 0.05 + TURN_QUIET_SECONDS)


def test_whoever_shares_an_address_with_a_greedy_connection_is_handled_at_once_as_long_as_it_is_cheap() -> None:
    async def story() -> list[bool]:
        clock = Clock()

        def receive(data: bytes) -> None:
            clock.now += len(data) / 1000

        turns = Turns(clock=clock)
        greedy, modest, unknown = (Payer("same", 1, [], clock) for _ in range(3))
        handled = [turns.handle(modest, receive, b"")]
        for taker, data in ((greedy, b"12345"), (modest, b""), (unknown, b""), (greedy, b""), (modest, b"123")):
            await asyncio.sleep(0)  # The next turn of the event loop.
            turns.light += 1
            handled.append(turns.handle(taker, receive, data))
        await asyncio.sleep(0)
        turns.light += 1
        return [*handled, turns.handle(modest, receive, b"")]

    assert asyncio.run(story()) == [True, True, True, False, False, True, False]
