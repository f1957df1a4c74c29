"""Stories of commands that a store with one shard and one with several answer alike."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

from hypothesis import strategies as st

from penstock.model.answers import Delivery, Drawn, Pulled, QueueDescription, QueueList
from penstock.model.commands import (
    DescribeQueue,
    Draw,
    Fetch,
    Finish,
    FinishMany,
    ListQueues,
    NewMessage,
    Publish,
    PublishInTurn,
    PublishOnce,
    PublishTopics,
    Pull,
    Purge,
    Settle,
    SettleMany,
)
from penstock.model.settings import QueueSettings

DEFAULTS = QueueSettings()
LONG = QueueSettings(keep="all")
# Created in this order, their numbers are the same with one shard and with four.
NAMES = {"a": 0, "b": 1, "c": 2, "d": 3, "e": 0}

names = st.sampled_from([*NAMES, "none"])
bodies = st.lists(st.sampled_from([b"one", b"two"]), min_size=1, max_size=2)
messages = bodies.map(lambda some: [NewMessage(body) for body in some])
topics = st.lists(st.sampled_from(list(NAMES)), min_size=1, max_size=1).map(tuple)
about = st.lists(st.builds(NewMessage, st.just(b"x"), topics=topics), min_size=1, max_size=4)
numbers, sequences = st.integers(1, 6), st.integers(1, 4)
finishes = st.lists(st.builds(Finish, numbers, sequences), min_size=1, max_size=4)
settles = st.lists(st.builds(Settle, numbers, sequences), min_size=1, max_size=4)
publishes = st.builds(Publish, names, messages)
draws = st.lists(names.filter(lambda name: name != "none"), min_size=1, max_size=4, unique=True)
results = st.lists(st.tuples(st.sampled_from(list(NAMES)), sequences, st.just(b"done")), max_size=2)


def keyed(publish: PublishTopics) -> PublishOnce:
    """Equal requests have the same key."""
    digest = sha256(repr(publish).encode()).digest()
    return PublishOnce(publish, digest, digest, 1 << 62, 1000)


commands = st.one_of(
    publishes,
    publishes,
    st.builds(Fetch, names, st.integers(1, 3)),
    st.builds(Finish, numbers, sequences),
    st.builds(FinishMany, finishes),
    st.builds(SettleMany, settles),
    st.builds(PublishTopics, about, st.just(DEFAULTS)),
    st.builds(PublishTopics, about, st.just(DEFAULTS)).map(keyed),
    st.builds(PublishInTurn, st.lists(publishes, min_size=1, max_size=4)),
    st.builds(
        Pull, st.sampled_from(["me", "you"]), draws.map(lambda some: [Draw(name, most=2) for name in some]), results
    ),
    st.builds(DescribeQueue, names),
    st.builds(ListQueues, st.integers(0, 3), st.integers(0, 6) | st.none()),
    st.builds(Purge, names),
)


def plain(answer: Any) -> Any:
    """An answer without times and positions in the log."""
    if isinstance(answer, list | tuple):
        return [plain(each) for each in answer]
    if isinstance(answer, Delivery):
        return answer.queue, answer.sequence, answer.body, answer.receives
    if isinstance(answer, Pulled):
        return plain(answer.drawn), sorted(answer.wrong, key=repr), {} if answer.wrong else answer.last
    if isinstance(answer, Drawn):
        return answer.queue, answer.sequences, answer.bodies
    if isinstance(answer, QueueList):
        return answer.total, plain(answer.queues)
    if isinstance(answer, QueueDescription):
        counts = (answer.messages, answer.ready, answer.leased, answer.kept, answer.last_sequence)
        return answer.name, answer.number, *counts
    return answer
