"""The list of differences: how a broker with several shards may answer otherwise than one process with one.

`docs/workers.md` has each of them in prose. A difference that no longer occurs has to leave both.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from msgspec import Struct

from tests.twins.programs import Back, Hang, Http, Step

ABSENT = "(absent)"
UNAVAILABLE = "unavailable"  # While a process stands still. Nothing was done, so it is asked of several only.

CUT_OFF = "it was cut off"  # In place of an answer.


class Part(Struct, frozen=True):
    """Something that differs."""

    step: str
    at: str  # A path in what was seen.
    one: Any
    several: Any
    before: Sequence[Step] = ()  # The steps so far.


Where = Callable[[Part, Any, Any], bool]  # Of a part, by all that was seen of either twin.


def _anyway(*_: Any) -> bool:
    return True


class Difference(Struct, frozen=True):
    name: str
    docs: str  # What `docs/workers.md` says about it, literally.
    step: str  # A pattern: after which steps.
    at: str  # A pattern: where in what was seen.
    where: Where = _anyway
    ends: bool = False  # Afterwards the twins are in different states.


def _is_only_there(part: Part, *_: Any) -> bool:
    return bool(part.one == ABSENT)


def _is_absent_in_one_of_them(part: Part, *_: Any) -> bool:
    return ABSENT in (part.one, part.several)


def _are_the_same_events(_: Part, one: Any, several: Any) -> bool:
    def events(seen: Any) -> list[str]:
        body = seen.answer["body"]
        found = body["events"] if isinstance(body, dict) else body  # Ids are numbered as they come.
        return sorted(str([each.get(name) for name in ("queue", "sequence", "state")]) for each in found)

    return events(one) == events(several)


def _has_no_body(part: Part, *_: Any) -> bool:
    return bool(part.several == ABSENT)


def _is_about_from(part: Part, *_: Any) -> bool:
    return str(part.one).startswith("from must be ") and str(part.several).startswith("from must be ")


def _is_channel_with_more(part: Part, one: Any, several: Any) -> bool:
    name = part.at.split(".")[1]
    more = several.state[name]["status"]["messages"] - one.state[name]["status"]["messages"]
    return "topics" in several.state[name] and more > 0


def _stays_where_it_is_leased(_: Part, one: Any, several: Any) -> bool:
    """Several have a message leased that one has in the dead-letter queue, hidden for as long."""
    changes = {"messages": 0, "leased": 0, "delayed": 0}
    for name in one.state.keys() & several.state.keys():
        for figure in changes:
            changes[figure] += several.state[name]["status"][figure] - one.state[name]["status"][figure]
    return changes["messages"] == 0 and changes["leased"] == -changes["delayed"] > 0


def _was_dead_unseen(part: Part, one: Any, several: Any) -> bool:
    """A last delivery began while a process stood still, when nothing can be compared."""
    has_dead = "dead_letter_queue" in str(part.before) and any(isinstance(each, Hang) for each in part.before)
    return isinstance(part.before[-1], Back) and has_dead


def _ends_in_its_own_shard(part: Part, one: Any, several: Any) -> bool:
    is_until_taken = "'until': 'taken'" in str(part.before[-1]) or "until=taken" in part.step
    return is_until_taken and _has_copies(part, one, several)


def _deduplicates(part: Part, one: Any, _: Any) -> bool:
    """Some queue does, and a message was published to several."""
    return "'message_deduplication': True" in str(part.before) and _has_roots(part)


def _has_roots(part: Part) -> bool:
    """A message was published to several queues."""
    return any(
        len({str(topic).partition(".")[0] for topic in each.get("topics", ())}) > 1
        for each in _published(part.before)
    )


def _published(steps: Sequence[Step]) -> Iterator[dict[str, Any]]:
    """The messages of all publishes."""
    for step in steps:
        if isinstance(step, Http) and step.target == "/v1/publish" and isinstance(step.body, dict | list):
            messages = step.body if isinstance(step.body, list) else [step.body]
            yield from (
                each for each in messages if isinstance(each, dict) and isinstance(each.get("topics", []), list)
            )


def _is_known_at_home(part: Part, one: Any, several: Any) -> bool:
    """Content was published again, and some queues or channels of other shards have less of it."""
    contents = [*_contents(part.before)]
    return len(set(contents)) < len(contents) and _has_copies(part, one, several) and _has_less(one, several)


def _contents(steps: Sequence[Step]) -> Iterator[str]:
    """What was published, in the native API and in mqs."""
    for step in steps:
        if isinstance(step, Http) and step.method == "POST" and isinstance(step.body, str):
            yield step.body
    yield from (_text(each.get("message")) for each in _published(steps))


def _text(content: Any) -> str:
    return content if isinstance(content, str) else json.dumps(content)


def _has_less(one: Any, several: Any) -> bool:
    more = [
        one.state[name]["status"]["last_sequence"] - several.state[name]["status"]["last_sequence"]
        for name in one.state.keys() & several.state.keys()
    ]
    return max(more, default=0) > 0


def _hangs(part: Part, *_: Any) -> bool:
    """A process stands still."""
    hanging = False
    for step in part.before:
        hanging = (hanging or isinstance(step, Hang)) and not isinstance(step, Back)
    return hanging


def _hangs_for_some(part: Part, _: Any, several: Any) -> bool:
    """Of several items."""
    codes = ("'unavailable'", "'outcome_unknown'")
    return _hangs(part) and any(code in str(several.answer["body"]) for code in codes)


def _hangs_for_copies(part: Part, _: Any, several: Any) -> bool:
    return _hangs(part) and isinstance(several.answer["body"], dict) and several.answer["body"]["complete"] is False


def _hangs_for_one_queue(part: Part, one: Any, several: Any) -> bool:
    """Of a pull of several queues, which has their last numbers if there are no messages."""
    body = several.answer["body"]
    pulled = body.get("messages", body) if isinstance(body, dict) else {}
    return _hangs(part) and None in pulled.values()


def _hangs_and_is_unknown(part: Part, one: Any, several: Any) -> bool:
    """Nobody can say what became of it, or what was to follow in the answer."""
    return _hangs(part) and (_is_unknown(part, one, several) or several.answer["body"] == CUT_OFF)


def _is_unknown(_: Part, __: Any, several: Any) -> bool:
    return "outcome_unknown" in str(several.answer)


def _are_the_same_queues(_: Part, one: Any, several: Any) -> bool:
    def names(seen: Any) -> list[str]:
        return sorted(each["name"] for each in seen.answer["body"].get("queues") or seen.answer["body"]["channels"])

    return names(one) == names(several)


def _went_straight(_: Part, one: Any, several: Any) -> bool:
    """A message that was popped at once has the sequence 0."""

    def popped(seen: Any) -> list[int]:
        frames = [each for name, heard in seen.heard.items() if name.startswith("glovebox") for each in heard]
        return sorted(each["sequence"] for each in frames if isinstance(each, dict) and each.get("finished"))

    return popped(one) != popped(several) and len(popped(one)) == len(popped(several))


def _names_more(part: Part, one: Any, several: Any) -> bool:
    """Though they have the same messages."""
    return one.state == several.state and set(part.one) < set(part.several)


def _is_repeated(part: Part, *_: Any) -> bool:
    """The same request with the same key was there before."""
    *before, step = part.before
    return isinstance(step, Http) and "Idempotency-Key" in step.headers and step in before


def _has_moved(part: Part, one: Any, several: Any) -> bool:
    """A schedule was changed to publish elsewhere."""
    if part.at == "answer.status":
        return (part.one, part.several) == (200, 201)
    changed = Counter(
        (step.target, str(value))
        for step in part.before
        if isinstance(step, Http) and step.target.startswith("/v1/schedules/") and isinstance(step.body, dict)
        for value in (step.body.get("queue") or step.body.get("topics"),)
        if value
    )
    return max(Counter(target for target, _ in changed).values(), default=0) > 1


def _is_over_queues(part: Part, *_: Any) -> bool:
    return "queue=" not in part.step


def _has_copies(part: Part, one: Any, _: Any) -> bool:
    """There are copies in channels or further queues."""
    return any("topics" in queue for queue in one.state.values()) or _has_roots(part)


_TAKES = re.compile(
    r"(GET|HEAD) .*/messages.*|GET /(messages|v1/events).*|POST /(pull|v1/claims|v1/confirm).*|\w+ (FET|fetch|pop)"
)


def _last_sequences(seen: Any) -> dict[str, int]:
    return {name: queue["status"]["last_sequence"] for name, queue in seen.state.items()}


def _came_together(part: Part, one: Any, several: Any) -> bool:
    """The same messages are in the same queues. Some were published together, to queues of several shards."""
    if not _TAKES.fullmatch(part.step) and not part.at.startswith("heard."):
        return False
    lists = [each.body for each in part.before if isinstance(each, Http) and each.target == "/v1/publish"]
    have_come = _last_sequences(one) == _last_sequences(several) and part.at.startswith("heard.")
    is_there = have_come or one.state == several.state or _stays_where_it_is_leased(part, one, several)
    return is_there and any(isinstance(body, list) and len(body) > 1 for body in lists)


_STATUS = r"state\.[^.]+\.status\.(messages|leased|delayed|ready|last_sequence|oldest_message_age)"

DIFFERENCES: Final[tuple[Difference, ...]] = (
    Difference(
        "dead letters leave later",
        "A message with a dead-letter queue in another shard leaves when its last lease ends, not when its last"
        " delivery begins.",
        ".*",
        rf"{_STATUS}|heard\.glovebox.*",
        lambda *about: _stays_where_it_is_leased(*about) or _was_dead_unseen(*about),
        ends=True,
    ),
    Difference(
        "channels may have more",
        "A channel may have some messages from just before its creation.",
        ".*",
        r"state\.[^.]+\.status\.(messages|ready|delayed|last_sequence|oldest_message_age)",
        _is_channel_with_more,
        ends=True,
    ),
    Difference(
        "copies come after",
        "Copies for channels and further queues of other shards, dead letters and redriven messages follow",
        ".*",
        r"(answer|heard)\..*",
        _came_together,
        ends=True,
    ),
    Difference(
        "requests in parts",
        "After that the whole is `outcome_unknown`, and says how many are stored",
        "POST (/v1/publish|/post|/pull).*",
        r"(answer|state)\..*",
        _is_unknown,
        ends=True,
    ),
    Difference(
        "schedules that move are new",
        "A schedule that is changed to publish to a queue of another shard is a new one there: the answer is 201, and"
        " its runs count from 0.",
        "(GET|PUT|PATCH) /v1/schedules.*",
        r"answer\.(status|body\.(schedules\[\d+\]\.)?(created|runs|last_\w+))",
        _has_moved,
    ),
    Difference(
        "queues made together",
        "Queues that one publish creates in several shards may be listed in any order.",
        "GET (/v1)?/(queues|channels).*",
        r"answer\.body\.(queues|channels)\[\d+\]\..*",
        _are_the_same_queues,
    ),
    Difference(
        "pulls while one is away",
        "A pull over queues of several shards gets what there is, and `null` for a queue whose shard is away",
        "POST /pull",
        r"answer\.body.*",
        _hangs_for_one_queue,
        ends=True,
    ),
    Difference(
        "health while one is away",
        "After two seconds `/health` is red on all others and says which one it is.",
        "(GET|HEAD) /health",
        r"answer\..*",
        _hangs,
    ),
    Difference(
        "items while one is away",
        "confirmations are answered one by one.",
        "POST /v1/(confirm|extend|wait)",
        r"answer\.body.*",
        _hangs_for_some,
        ends=True,
    ),
    Difference(
        "documents while one is away",
        "If a shard cannot be reached, the document says that it is not `complete`",
        "GET /v1/messages/.*",
        r"answer\.body\..*",
        _hangs_for_copies,
    ),
    Difference(
        "unknown while one is away",
        "cannot be asked again within `ask_again_seconds` (10) | the outcome is unknown",
        ".*",
        r"answer\..*",
        _hangs_and_is_unknown,
        ends=True,
    ),
    Difference(
        "fast pops",
        "A post of glovebox goes straight to a waiting pop only if the client that posts is connected to the process"
        " that has the queue.",
        ".*",
        r"(heard\.glovebox|state\.).*",
        _went_straight,
        ends=True,
    ),
    Difference(
        "more are named",
        "An answer to a publish names queues and channels of other shards also if they have the content already, and"
        " do not take it again.",
        "POST /v1/(publish|schedules).*",
        r"answer\.body(\[\d+\])?\.(queues|channels)",
        _names_more,
    ),
    Difference(
        "unchanged content goes nowhere else",
        "Content that the shard of the first queue does not store, because it is unchanged or there already, goes"
        " nowhere else.",
        "POST /v1/(publish|schedules).*",
        r"(answer\.body|state).*",
        _is_known_at_home,
        ends=True,
    ),
    Difference(
        "channels of repeated answers",
        "An answer that is repeated for an `Idempotency-Key` names the channels of other shards that get such"
        " messages now.",
        "POST .*",
        r"answer\.body(\[\d+\])?\.channels",
        _is_repeated,
    ),
    Difference(
        "searches go by numbers",
        "A search over all queues is ordered by their numbers, which do not show which of two queues in different"
        " shards is older.",
        "GET /v1/search.*",
        r"answer\.body\.(messages|next).*",
        _is_over_queues,
    ),
    Difference(
        "copies are like their originals",
        "The event Q of a copy that came from another shard has the content, and does not name the original.",
        "GET /v1/(events|messages).*",
        r"answer\.body(\.events)?\[\d+\]\.(to_\w+|message|message_base64|key|headers|timestamp|sha256)",
        _is_absent_in_one_of_them,
    ),
    Difference(
        "waits for the first queue",
        "A wait until it is taken is also over when it has ended in the shard of its id, whatever becomes of its"
        " copies.",
        "POST /v1/wait",
        r"answer\.body\.messages.*",
        _ends_in_its_own_shard,
    ),
    Difference(
        "unchanged content is elsewhere",
        "The document of an unchanged message has no body if the version that it equals is in another shard.",
        "GET /v1/messages/.*",
        r"answer\.body\.(events\[\d+\]\.)?(message|message_base64)",
        _has_no_body,
    ),
    Difference(
        "cursors",
        "the cursor of all events has a part for each shard: `0:17,1:4`.",
        "(GET|HEAD) /v1/events.*",
        r"answer\.body\.error",
        _is_about_from,
    ),
    Difference("events name their shard", "Events have a field `shard`", "GET /v1/.*", r".*\.shard", _is_only_there),
    Difference(
        "couriers are shown",
        "`/v1/stats` has the same in `couriers`.",
        "GET /v1/stats.*",
        r"answer\.body\.couriers",
        _is_only_there,
    ),
    Difference(
        "at the same moment",
        "Events of the same moment in several shards may be in any order",
        "GET /v1/(messages/|events).*",
        r"answer\.body(\.events)?\[.*",
        _are_the_same_events,
    ),
    Difference(
        "ids from other queues",
        "a queue that deduplicates takes precedence over the first one only in the shard of the first queue.",
        ".*",
        ".*",
        _deduplicates,
        ends=True,
    ),
)


KNOWN: Final[tuple[Difference, ...]] = ()
"""Defects that are known, which have to leave this list when they are mended, and what only simulations show."""


def explanation(part: Part, one: Any, several: Any) -> Difference | None:
    """The entry of the list that allows a difference. `one`, `several`: all that was seen of the twins."""
    return next((each for each in (*DIFFERENCES, *KNOWN) if _explains(each, part, one, several)), None)


def _explains(each: Difference, part: Part, one: Any, several: Any) -> bool:
    fits = re.fullmatch(each.step, part.step, re.DOTALL) and re.fullmatch(each.at, part.at, re.DOTALL)
    return bool(fits and each.where(part, one, several))
