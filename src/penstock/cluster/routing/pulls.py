"""Where the parts of a pull go, and how their answers are joined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from penstock.broker.shard_map import ShardMap
from penstock.cluster.routing.cut_commands import ADMINISTRATION, Destination, Parts, by_shard
from penstock.limits import NEVER_NS
from penstock.model import commands
from penstock.model.answers import Answer, Pulled, Refused, WrongResult
from penstock.model.commands import Command


def pull(command: commands.Pull, shards: ShardMap) -> Destination:
    """First whether every queue can be read from where it is asked for, then the results: if one is wrong, nothing is
    delivered. Then the draws wait together."""
    results = by_shard(command.results, lambda each: shards.of_name(each[0]))
    draws = by_shard(command.draws, lambda each: shards.of_name(each.queue))
    concerned = results.keys() | draws.keys()
    if len(concerned) <= 1:
        home = next(iter(concerned), ADMINISTRATION)
        return _pull_that_waits(command, home) if results and draws and command.wait_ns else home
    placed = by_shard([draw for draw in command.draws if draw.start], lambda each: shards.of_name(each.queue))
    parts: list[tuple[int, commands.Pull]] = []
    for shard in placed:
        asked = [command.draws[index] for index in draws[shard]]
        nothing = [commands.Draw(draw.queue, draw.start and 1, most=0) for draw in asked]
        parts.append((shard, commands.Pull(command.receiver, nothing)))
    for shard, some in results.items():
        parts.append((shard, commands.Pull(command.receiver, (), [command.results[index] for index in some])))
    for shard, some in draws.items():
        drawn = [command.draws[index] for index in some]
        parts.append((shard, commands.Pull(command.receiver, drawn, wait_ns=command.wait_ns)))
    checks, first = len(placed), len(placed) + len(results)

    def goes_on(answers: list[Any]) -> bool:
        if len(answers) <= checks:
            return not isinstance(answers[-1], Refused) or _is_away(answers[-1])
        return len(answers) < first or not any(map(_is_wrong, answers[checks:]))

    def join(answers: list[Any]) -> Answer:
        if len(answers) <= checks:
            return answers[-1]  # type: ignore[no-any-return]
        pulled = _pulled([part for _, part in parts[checks:]], answers[checks:])
        if isinstance(pulled, Pulled):
            order = {draw.queue: index for index, draw in enumerate(command.draws)}
            pulled.drawn.sort(key=lambda each: order[each.queue])
        return pulled

    return Parts(parts, join, first, goes_on, _is_away)


def _pull_that_waits(command: commands.Pull, home: int) -> Parts:
    """What has stored results does not wait: if its shard is lost meanwhile, it is asked again, and results that are
    stored already may be wrong then."""
    parts = [replace(command, wait_ns=0), replace(command, results=())]

    def join(answers: list[Any]) -> Answer:
        return _pulled(parts, answers) if len(answers) > 1 else answers[0]

    return Parts([(home, part) for part in parts], join, 1, _is_empty, _is_away, after=_from_there_on)


def _is_empty(answers: list[Any]) -> bool:
    return not answers[-1]


def _from_there_on(command: Command, answers: list[Any]) -> Command:
    """What has come since the first part was decided is new for the client too."""
    if not answers or not isinstance(command, commands.Pull):
        return command
    last = answers[-1].last
    draws = [
        replace(draw, start=last[draw.queue] + 1, only_new=True) if draw.start == commands.FROM_NEXT else draw
        for draw in command.draws
    ]
    return replace(command, draws=draws)


def _is_wrong(answer: Pulled | Refused) -> bool:
    return isinstance(answer, Refused) or bool(answer.wrong)


def _is_away(answer: Any) -> bool:
    """Whether it says something about a shard at this moment, and nothing about the request."""
    return isinstance(answer, Refused) and answer.reason.status >= 500


def _pulled(parts: Sequence[commands.Pull], answers: Sequence[Pulled | Refused]) -> Answer:
    """What is done in one shard stays done if another one refuses: each says what became of its queues. But if
    nothing is done anywhere, the refusal is the answer."""
    joined, is_any_stored = Pulled([], [], {}, NEVER_NS), False
    for part, answer in zip(parts, answers, strict=False):
        if isinstance(answer, Refused):
            joined.refused = joined.refused if joined.refused and _is_away(answer) else answer
            joined.wrong += [WrongResult(queue, sequence, answer) for queue, sequence, _ in part.results]
            joined.last |= {draw.queue: None for draw in part.draws}
            continue
        is_any_stored = is_any_stored or bool(part.results)
        joined.drawn += answer.drawn
        joined.wrong += answer.wrong
        joined.last |= answer.last
        joined.due_at = min(joined.due_at, answer.due_at)
    if joined.drawn:
        joined.last = {queue: last for queue, last in joined.last.items() if last is None}
        joined.due_at = NEVER_NS
    refused = joined.refused
    if refused is None or joined.drawn or is_any_stored:
        return joined
    is_all_refused = all(isinstance(answer, Refused) for answer in answers)
    return refused if is_all_refused or not _is_away(refused) else joined
