"""The metrics of all shards as one exposition, as if there was one shard: sums, or the worst."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from penstock.dialects.wire import http
from penstock.limits import FIGURES_SECONDS_MAX
from penstock.server.front.asking import Asking, Responded
from penstock.server.metrics import FAMILIES, exposed
from penstock.server.shards.fellow import Fellow

_OK = 200
Combine = Callable[[Iterable[float]], float]

# How the samples of several shards become one; others are added up.
_COMBINED: dict[str, Combine] = {
    **dict.fromkeys(
        (
            *("penstock_build_info", "penstock_names", "penstock_names_max", "penstock_queue_oldest_seconds"),
            *("penstock_snapshot_age_seconds", "penstock_snapshot_seconds", "penstock_history_write_seconds"),
            "penstock_courier_lag_seconds",
        ),
        max,
    ),
    **dict.fromkeys(
        (
            *("penstock_healthy", "penstock_history_healthy", "process_start_time_seconds"),
            *(
                "penstock_tls_certificate_expires_timestamp_seconds",
                "penstock_disk_free_bytes",
                "penstock_disk_bytes",
            ),
        ),
        min,
    ),
}
_ORDER = {family.name: index for index, family in enumerate(FAMILIES)}


class _Family:
    """One metric: its description, and for each set of labels the values of the shards."""

    def __init__(self) -> None:
        self.head: list[str] = []
        self.samples: dict[str, list[float]] = {}

    @property
    def only_grows(self) -> bool:
        return self.head[-1].endswith((" counter\n", " histogram\n"))


async def metrics(asking: Asking) -> Responded:
    """Without the counters, while somebody is away: a sum that falls would be taken for a start of the broker."""
    answers = await asking.ask_counted(FIGURES_SECONDS_MAX)
    responses = [each for each in answers if isinstance(each, http.Response)]
    if refused := next((each for each in responses if each.status != _OK), None):
        return refused
    families: dict[str, _Family] = {}
    for response in responses:
        _add(families, response.body.decode())
        await asyncio.sleep(0)  # A shard has thousands of lines.
    if away := Counter(each.number for each in answers if isinstance(each, Fellow)):
        families = {name: family for name, family in families.items() if not family.only_grows}
    _add(families, _away(asking, away))
    ordered = sorted(families, key=lambda name: _ORDER.get(name, len(_ORDER)))
    written = [line for name in ordered for line in _lines(name, families[name])]
    return http.Response(200, "".join(written).encode(), responses[0].headers)


def _away(asking: Asking, away: Mapping[int, int]) -> str:
    """How many shards of each process are missing."""
    fellows = {fellow.number for shard in asking.counted() if (fellow := asking.fellow(shard))}
    return exposed("penstock_shards_away", [((str(each),), away.get(each, 0)) for each in sorted(fellows)])


def _add(families: dict[str, _Family], text: str) -> None:
    current, is_new = _Family(), False
    for line in text.splitlines():
        if line.startswith("# HELP "):
            name = line.split(" ", 3)[2]
            is_new = name not in families
            current = families.setdefault(name, _Family())
        if line.startswith("#"):
            current.head += [line + "\n"] if is_new else []
        else:
            sample, _, value = line.rpartition(" ")
            current.samples.setdefault(sample, []).append(float(value))


def _lines(name: str, family: _Family) -> list[str]:
    combine: Any = _COMBINED.get(name, sum)
    return family.head + [f"{sample} {float(combine(values))}\n" for sample, values in family.samples.items()]
