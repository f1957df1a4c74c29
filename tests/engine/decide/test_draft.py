"""A draft sees what its own earlier steps have done, and the state sees nothing of it."""

from __future__ import annotations

import pytest

from penstock.engine.decide.draft import Draft, RefusedError
from penstock.engine.engine import Engine
from penstock.errors import Reason
from penstock.model.events import NameDefined, QueueCreated
from penstock.model.settings import QueueSettings
from tests.support.engine_rig import Rig, state_of


@pytest.fixture
def draft(rig: Rig) -> Draft:
    rig.create("work")
    rig.publish("work", b"one", b"two")
    return Draft(rig.engine, rig.now(), rig.now())


def test_a_name_is_defined_once(draft: Draft) -> None:
    first, again, other = draft.number("text/plain"), draft.number("text/plain"), draft.number("text/html")
    assert first == again != other
    assert [event.text for event in draft.events if isinstance(event, NameDefined)] == ["text/plain", "text/html"]
    assert draft.number("") == 0


def test_names_of_a_draft_count_towards_the_limit() -> None:
    draft = Draft(Engine(names_max=2), 1, 1)
    draft.number("one")
    draft.number("two")
    with pytest.raises(RefusedError) as raised:
        draft.number("three")
    assert raised.value.refused.reason is Reason.TOO_MANY_NAMES


def test_a_queue_that_a_draft_creates_exists_for_the_rest_of_it(draft: Draft) -> None:
    assert draft.queue("new") is None
    new, newer = draft.add_queue("new", QueueSettings()), draft.add_queue("newer", QueueSettings())
    assert (draft.queue("new"), draft.queue("newer"), draft.queues_created) == (new, newer, 2)
    assert [event.queue for event in draft.events if isinstance(event, QueueCreated)] == [2, 3]


def test_sequences_are_given_out_once(draft: Draft) -> None:
    work = draft.queue("work")
    assert work is not None
    assert [draft.take(work), draft.take(work, 5), draft.take(work)] == [3, 4, 9]
    assert work.last_sequence == 2


def test_a_message_that_a_draft_is_done_with_is_not_found_again(draft: Draft) -> None:
    work = draft.queue("work")
    assert work is not None
    draft.end(work, 1)
    assert draft.find(1, 1) is not None  # A decision that touches no message twice keeps no account of them.
    draft.done_with = set()
    draft.end(work, 1)
    assert draft.find(1, 1) is None
    assert draft.find(1, 2) is not None


def test_a_draft_leaves_the_state_alone(rig: Rig, draft: Draft) -> None:
    before = state_of(rig.engine)
    work = draft.queue("work")
    assert work is not None
    draft.done_with = set()
    draft.number("text/plain")
    draft.take(draft.add_queue("new", QueueSettings()))
    draft.take(work)
    draft.end(work, 1)
    assert state_of(rig.engine) == before
    assert rig.engine.find(1, 1) is not None
