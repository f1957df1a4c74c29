"""What a run says: one line while it goes, tables at its end, and each violation with the events that show it."""

from __future__ import annotations

from statistics import median
from typing import Any

import msgspec

from penstock.torture.checker import RULES, Violation
from penstock.torture.run import Run

EVENTS_MAX = 40
_MIB = 1 << 20


def progress(run: Run) -> str:
    done, minutes = run.stage.now / 60, run.options.minutes
    operations, faults = sum(run.stage.operations.values()), run.faults.count
    memory = f"broker {run.memory.newest_bytes // _MIB} MiB, torture {run.memory.driver_bytes // _MIB} MiB"
    return (
        f"{run.phase}: {done:.1f} of {minutes:g} minutes, {operations:,} operations, {faults} faults, "
        f"{len(run.violations)} violations, {memory}"
    )


def summary(run: Run) -> dict[str, Any]:
    """Everything about a run, for programs."""
    flat = run.memory.flatness()
    return {
        "seed": run.options.seed,
        "seconds": round(run.stage.now, 1),
        "finished": run.phase == "done",
        "operations": dict(run.stage.operations),
        "connections_cut": run.stage.cut,
        "faults": {kind: _times(seconds) for kind, seconds in sorted(run.faults.seconds.items())},
        "memory": flat and flat._asdict(),
        "memory_minutes": run.memory.minutes,
        "torture_bytes": run.memory.driver_bytes,
        "violations": [each._asdict() for each in run.violations],
    }


def _times(seconds: list[float]) -> dict[str, float]:
    found = seconds or [0.0]
    return {"count": len(seconds), "median_seconds": round(median(found), 3), "max_seconds": round(max(found), 3)}


def tables(run: Run) -> list[tuple[tuple[str, ...], list[tuple[Any, ...]]]]:
    """Headings and rows of each table."""
    faults = [(kind, *_times(seconds).values()) for kind, seconds in sorted(run.faults.seconds.items())]
    broken = [each.rule for each in run.violations]
    return [
        (("dialect", "operations answered"), sorted(run.stage.operations.items())),
        (("fault", "count", "serves again after s, median", "longest s"), faults),
        (("rule", "violations"), [(rule, broken.count(rule)) for rule in RULES]),
    ]


def memory(run: Run) -> str:
    flat = run.memory.flatness()
    if flat is None:
        return "Memory: the run was too short to say whether it is flat (about 7 minutes are needed)."
    word = "flat" if flat.is_flat else "NOT flat"
    size = f"{flat.broker_bytes / _MIB:.1f} MiB after the warm-up, at most {flat.farthest:+.1%} from it"
    return f"Memory of the broker: {size}: {word}."


def story(run: Run, found: Violation) -> str:
    """A violation, and the shortest history that shows it: the events of what it is about."""
    events = [event for event in run.history.about(found.about) if event.at <= found.at]
    skipped = [f"  … {len(events) - EVENTS_MAX} events before"] if len(events) > EVENTS_MAX else []
    lines = [f"  {msgspec.json.encode(event).decode()}" for event in events[-EVENTS_MAX:]]
    head = f"{found.rule}: {RULES[found.rule]}. Violated at {found.at:.3f} s by {found.about}: {found.sentence}"
    return "\n".join([head, *skipped, *lines])
