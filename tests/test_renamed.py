"""Names that were replaced work as their successors do, and warn about the line that uses them."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import App, AsyncClient, Client, worker
from penstock.client import errors
from penstock.renamed import RENAMED, DeprecatedName, Renamed, takes_old_names, with_new_names
from tests.support.broker import Broker

PAGE = Path(__file__).parents[1] / "docs" / "naming.md"
NOBODY = "http://127.0.0.1:1"  # Nothing is asked of it.
# What the first word of a place stands for, if it is an object with attributes that were renamed.
OBJECTS: dict[str, tuple[Callable[[], Any], ...]] = {
    "client": (lambda: Client(NOBODY), lambda: AsyncClient(NOBODY)),
    "app": (App,),
}
ATTRIBUTES = [
    (place, row.old)
    for place, rows in RENAMED.items()
    for row in rows
    if place.partition(".")[0] in OBJECTS and row.old.isidentifier()
]


def rendered() -> Iterator[str]:
    yield "| where | old | new | since |"
    yield "|---|---|---|---|"
    for place, rows in RENAMED.items():
        for row in rows:
            yield f"| {place.strip(' .')} | `{row.old}` | `{row.new}` | {row.since} |"


def test_the_page_shows_the_table() -> None:
    shown = PAGE.read_text().split("<!-- renamed -->")[1].split("<!-- /renamed -->")[0]
    wanted = "\n".join(rendered())
    assert shown.strip() == wanted, f"copy this into {PAGE}:\n{wanted}"


@pytest.mark.parametrize(("place", "old"), ATTRIBUTES)
def test_an_attribute_is_found_by_its_old_name_too(place: str, old: str) -> None:
    row = next(row for row in RENAMED[place] if row.old == old)
    root, *path = place.strip(".").split(".")
    for make in OBJECTS[root]:
        thing = make()
        for step in path:
            thing = getattr(thing, step)
        with pytest.warns(DeprecatedName, match=f"{place}{old} is deprecated since {row.since}") as warned:
            found = getattr(thing, old)
        assert row.find or found == attrgetter(row.new)(thing)
        assert warned[0].filename == __file__


@takes_old_names("client.schedules.")  # Any place will do.
def taking(*, create: int = 0, change: int = 0) -> tuple[int, int]:
    return create, change


def test_an_argument_is_taken_under_its_old_name_too() -> None:
    old: dict[str, int] = {"put": 3}
    with pytest.warns(
        DeprecatedName, match=r"client\.schedules\.put is deprecated .* until 1\.0: use create"
    ) as warned:
        assert taking(**old) == (3, 0)
    assert [each.filename for each in warned] == [__file__]
    assert taking(create=3, change=4) == (3, 4)


def test_a_setting_is_taken_and_shown_under_its_old_name_too(broker: Broker) -> None:
    with Client(broker.url) as client:
        queues: Any = client.queues  # Its type knows the new names only.
        with pytest.warns(DeprecatedName) as warned:
            made = queues.create("renamed-settings", visibility_timeout=7)
        assert made.lease == 7
        with pytest.warns(DeprecatedName) as warned_of_attribute:
            assert made.visibility_timeout == 7
        with pytest.raises(TypeError, match="visibility_timeout is the old name of lease: give only lease"):
            queues.change("renamed-settings", lease=8, visibility_timeout=7)
    assert [each.filename for each in (*warned, *warned_of_attribute)] == [__file__, __file__]


@pytest.mark.parametrize("row", [row for row in RENAMED["app."] if row.find], ids=lambda row: row.old)
def test_an_old_decorator_of_an_app_adds_its_function_where_the_new_one_does(row: Renamed) -> None:
    app, added = App(), lambda: None
    with pytest.warns(DeprecatedName):
        assert getattr(app, row.old)(added) is added
    event = row.new.split('"')[1]
    assert vars(app.hooks.of(event)) == {"_functions": [added]}  # type: ignore[arg-type]


def test_an_app_has_half_of_the_public_names_that_it_had() -> None:
    old = {row.old for row in RENAMED["app."]}
    assert len([name for name in dir(App()) if not name.startswith("_") and name not in old]) <= 15


async def publish_as_before(client: Any) -> list[Any]:
    """As it was before `publish_to`; a blocking client and one for asyncio."""
    with pytest.warns(DeprecatedName, match=r"client\.publish\(None, …\) is .*: use publish_to") as warned:
        one = client.publish(None, "x", topics=["renamed-topic.a"], priority=3)
    with pytest.warns(DeprecatedName, match=r"use publish_many_to") as warned_of_many:
        many = client.publish_many(None, ["y"], topics=["renamed-topic.b"])
    queued = client.publish("renamed-topic", "z", topics=None)
    assert [each.filename for each in (*warned, *warned_of_many)] == [__file__, __file__]
    with pytest.raises(TypeError, match="publish is for a queue: use publish_to for topics"):
        client.publish("renamed-topic", "x", topics=["a"])
    found = [await each if inspect.isawaitable(each) else each for each in (one, many, queued)]
    return [found[0], *found[1], found[2]]


def test_publishing_to_topics_with_none_for_a_queue_is_publish_to(broker: Broker) -> None:
    async def asynchronously() -> list[Any]:
        async with AsyncClient(broker.url) as client:
            return await publish_as_before(client)

    with Client(broker.url) as client:
        for sent in (asyncio.run(publish_as_before(client)), asyncio.run(asynchronously())):
            assert [each.queues for each in sent] == [("renamed-topic",)] * 3
        now = client.publish_to("renamed-topic.a", "x", priority=3)
        (many,) = client.publish_many_to(["renamed-topic.b"], ["y"])
        messages = client.receive("renamed-topic", 10)
    assert {message.id for message in messages} >= {now.id, many.id}
    assert [(each.text, each.priority, each.topics) for each in messages[:3]] == [("x", 3, ("renamed-topic.a",))] * 3


def test_a_message_and_a_job_fail_with_one_exception_which_has_its_old_name_too() -> None:
    assert penstock.MessageFailed is errors.MessageFailed is worker.MessageFailed
    for module in (penstock, worker):
        with pytest.warns(DeprecatedName, match=r"penstock\.JobFailed is deprecated .*: use MessageFailed") as warned:
            assert module.JobFailed is errors.MessageFailed
        assert [each.filename for each in warned] == [__file__]
        with pytest.raises(AttributeError, match="has no attribute 'JobFaild'"):
            _ = module.JobFaild


def test_both_names_of_one_thing_are_refused() -> None:
    with pytest.raises(TypeError, match=r"client\.schedules\.put is the old name of create: give only create"):
        with_new_names("client.schedules.", {"put": 1, "create": 1})
