"""The table of the lifecycle: what it says is what `evolve` does, and what the documentation shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest

from penstock.engine.engine import Engine
from penstock.limits import NEVER_NS
from penstock.model.events import (
    EVENTS,
    Arrived,
    Damaged,
    Delivered,
    Event,
    Fetched,
    HandedOver,
    Logged,
    MessageEvent,
    QueueCreated,
    Queued,
    Unchanged,
)
from penstock.model.kinds import LETTERS, Kind, State
from penstock.model.lifecycle import ALLOWED, TRANSITIONS
from penstock.model.settings import QueueSettings
from tests.support.documented import diagram

ARCHITECTURE = Path(__file__).parents[2] / "docs" / "architecture.md"
CREATED = 10
NOW = 100
RECEIVER = 3
FACTS: dict[str, Any] = {"time": NOW, "queue": 1, "sequence": 1, "created": CREATED, "receives": 1, "consumer": 0}
STORED: dict[str, Any] = {"expires_at": NEVER_NS, "to_queue": 2, "to_sequence": 2, "result": b"done"}
STORED["reason"] = b"broken"
STORED |= {
    "ahead": False,
    "begun": False,
    "complete": True,
    "fetched": False,
    "leased": False,
    "shard": 3,
    "target": b"far",
    "origin": b"near",
}
UNTIL = {Kind.FETCHED: NOW + 50, Kind.DELIVERED: NOW + 50, Kind.EXTENDED: NOW + 60}
MESSAGE_KINDS = [kind for kind in Kind if kind >= Kind.LOGGED and kind.row.about == "message"]
WITHOUT_A_LETTER = {Kind.EXTENDED, Kind.RESCHEDULED, Kind.CAME_FROM, Kind.COPIED_FROM}
FOR_ONE = {Kind.INVALID_FOR_ONE, Kind.NOT_INTERESTED_FOR_ONE}
BY_RECEIVERS_TOO = {Kind.INVALID, Kind.NOT_INTERESTED, Kind.EXTENDED, *FOR_ONE}
ONLY_FOR_RECEIVERS = {
    *((State.KEPT, kind) for kind in BY_RECEIVERS_TOO),
    (State.READY, Kind.EXTENDED),
    *((state, kind) for state in State for kind in FOR_ONE),
}
STATES = [State.READY, State.DELAYED, State.LEASED, State.KEPT, State.DAMAGED]


def logged(time: int, visible_at: int) -> Logged:
    return Logged(time, 1, 1, visible_at, NEVER_NS, 0, 0, 0, 0, 0, 0, b"", b"", b"", b"body")


def event_of(kind: Kind, visible_at: int = NOW, consumer: int = 0) -> Event:
    if kind is Kind.LOGGED:
        return logged(NOW, visible_at)
    if kind is Kind.ARRIVED:
        return Arrived(NOW, 1, 1, visible_at, NEVER_NS, 0, 0, 0, 0, 0, 0, b"", b"", b"", b"body", CREATED)
    if kind is Kind.QUEUED:
        return Queued(NOW, 1, 1, CREATED, visible_at, NEVER_NS, 0, 0, 0, 0, 0, 2, 1)
    if kind is Kind.UNCHANGED:
        return Unchanged(NOW, 1, 1, 0, 0, 0, 0, 0, 2, 1, b"")
    [made] = [event for event in EVENTS if event.kind is kind and issubclass(event, MessageEvent)]
    stored = STORED | {"visible_at": UNTIL.get(kind, visible_at)}
    about = FACTS | {"consumer": RECEIVER if kind is Kind.GIVEN_BACK else consumer}
    return made(**about, **{name: stored[name] for name in kind.row.stores})


def engine_with_a_message(state: State, keep: Literal["finished", "all"] = "all") -> Engine:
    engine = Engine()
    # Also a queue whose finished messages leave keeps those that others have to confirm.
    settings = QueueSettings(keep=keep, confirmations=2 if state is State.KEPT else 1)
    engine.evolve(QueueCreated(1, 1, "work", settings), 0)
    engine.evolve(QueueCreated(2, 2, "dead", QueueSettings()), 0)
    engine.evolve(Logged(3, 2, 1, 3, NEVER_NS, 0, 0, 0, 0, 0, 0, b"", b"", b"", b"another"), 64)
    if state is not State.GONE:
        engine.evolve(logged(CREATED, NOW + 50 if state is State.DELAYED else CREATED), 64)
    if state is State.LEASED:
        engine.evolve(Fetched(**(FACTS | {"time": 20}), visible_at=NOW + 50), 0)
    if state is State.KEPT:
        engine.evolve(HandedOver(**(FACTS | {"time": 20})), 0)
    if state is State.DAMAGED:
        engine.evolve(Damaged(**(FACTS | {"time": 20})), 0)
    assert state_of_message(engine) is state
    return engine


def with_a_receiver_that_owes(engine: Engine) -> Engine:
    if engine.queues[1].rows.get(1):
        engine.evolve(Delivered(**(FACTS | {"time": 30, "consumer": RECEIVER}), visible_at=NOW + 50), 0)
    return engine


def state_of_message(engine: Engine) -> State:
    row = engine.queues[1].rows.get(1)
    return State(row.state) if row else State.GONE


@pytest.mark.parametrize(("state", "kind"), TRANSITIONS, ids=lambda value: value.name.lower())
def test_evolve_leads_where_the_table_says(state: State, kind: Kind) -> None:
    reached = set()
    keeps: list[Literal["finished", "all"]] = ["finished", "all"]
    for keep in keeps:
        for visible_at in (NOW, NOW + 50, NEVER_NS) if kind is Kind.RESTORED else (NOW, NOW + 50):
            engine = engine_with_a_message(state, keep)
            if (state, kind) not in ONLY_FOR_RECEIVERS:
                engine.evolve(event_of(kind, visible_at), 64)
                reached.add(state_of_message(engine))
            if kind in BY_RECEIVERS_TOO and state is not State.DAMAGED:
                engine = with_a_receiver_that_owes(engine_with_a_message(state, keep))
                engine.evolve(event_of(kind, visible_at, RECEIVER), 64)
                reached.add(state_of_message(engine))
    assert reached == set(TRANSITIONS[state, kind])


@pytest.mark.parametrize(
    ("state", "kind"),
    [(state, kind) for state in State for kind in MESSAGE_KINDS if (state, kind) not in ALLOWED],
    ids=lambda value: value.name.lower(),
)
def test_what_the_table_does_not_allow_cannot_happen(state: State, kind: Kind) -> None:
    engine = engine_with_a_message(state)
    with pytest.raises(AssertionError):
        engine.evolve(event_of(kind), 64)


LEAVES_READY = [
    kind for (state, kind), targets in TRANSITIONS.items() if state is State.READY and state not in targets
]


@pytest.mark.parametrize("kind", LEAVES_READY, ids=lambda kind: kind.name)
def test_replay_may_find_a_ready_message_still_delayed(kind: Kind) -> None:
    engine = engine_with_a_message(State.DELAYED)
    engine.evolve(event_of(kind), 64)
    assert state_of_message(engine) in TRANSITIONS[State.READY, kind]


def test_every_event_about_a_message_has_a_row_and_all_that_tell_a_reader_something_a_letter() -> None:
    of_queues = {Kind.QUEUE_REMOVED}
    assert LETTERS.keys() - of_queues == set(MESSAGE_KINDS) - WITHOUT_A_LETTER
    assert {kind for _, kind in TRANSITIONS} == set(MESSAGE_KINDS)


def test_every_state_can_be_reached_and_left_for_good() -> None:
    assert {target for targets in TRANSITIONS.values() for target in targets} == set(State)
    for state in STATES:
        assert any(State.GONE in targets for (source, _), targets in TRANSITIONS.items() if source is state)


def test_the_diagram_shows_every_transition() -> None:
    picture = diagram()
    assert picture.startswith("stateDiagram-v2\n")
    for (state, kind), targets in TRANSITIONS.items():
        for target in targets:
            source, end = (("[*]" if each is State.GONE else each.name.title()) for each in (state, target))
            [line] = [line for line in picture.splitlines() if line.strip().startswith(f"{source} --> {end}:")]
            assert kind.name.lower().replace("_", " ") in line


def test_the_documentation_shows_the_diagram() -> None:
    if not ARCHITECTURE.exists():
        pytest.skip("docs/architecture.md is not there yet")
    text = ARCHITECTURE.read_text()
    shown = text.split("<!-- lifecycle -->")[1].split("<!-- /lifecycle -->")[0]
    assert shown.strip().removeprefix("```mermaid").removesuffix("```").strip() == diagram()
