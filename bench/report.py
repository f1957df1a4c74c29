"""Turns many measurements into one table, one file and one picture."""

import dataclasses
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.driver import Count, Latency
from bench.targets import Figures, Target

# If the load uses more than this share of its core, the load may have been the limit instead of the server.
LOAD_LIMIT_SHARE = 0.97
# Name of the ratio, the target it belongs to, the figure, and the server it is compared with.
RATIOS = (
    ("publish_to_bare", "penstock", "publish_per_second", "bare"),
    ("receive_delete_to_bare", "penstock", "consume_per_second", "bare"),
    ("half_rate_p99_to_bare", "penstock", "half_rate_p99_ms", "bare"),
    ("alone_p50_to_bare", "penstock", "alone_p50_ms", "bare"),
    ("publish_to_rabbitmq", "penstock", "publish_per_second", "rabbitmq"),
    ("consume_to_rabbitmq", "penstock", "consume_per_second", "rabbitmq"),
    ("websocket_publish_to_rabbitmq", "penstock-websocket", "publish_per_second", "rabbitmq"),
    ("websocket_consume_to_rabbitmq", "penstock-websocket", "consume_per_second", "rabbitmq"),
    ("websocket_consume_to_rabbitmq_each", "penstock-websocket", "consume_per_second", "rabbitmq-each"),
    ("lines_publish_to_rabbitmq", "penstock-lines", "publish_per_second", "rabbitmq"),
    ("lines_consume_to_rabbitmq", "penstock-lines", "consume_per_second", "rabbitmq"),
    ("lines_consume_to_rabbitmq_each", "penstock-lines", "consume_per_second", "rabbitmq-each"),
    ("nq_post_to_redis_pipelined", "penstock-nq", "publish_per_second", "redis-pipelined"),
    ("nq_pull_alone_to_redis_read_and_ack", "penstock-nq", "consume_per_second", "redis-pipelined"),
    ("nq_results_to_redis_pipelined", "penstock-nq-results", "consume_per_second", "redis-pipelined"),
    # Both sides have the same number in flight.
    ("nq_post_to_redis_8_of_100", "penstock-nq", "publish_per_second", "redis-pipelined-more"),
    ("nq_results_to_redis_8_of_100", "penstock-nq-results", "consume_per_second", "redis-pipelined-more"),
)

CONDITIONS = "200-byte messages, fsync before a publish is acknowledged, 256 in flight unless stated otherwise"

Row = dict[str, float]


def row(figures: Figures) -> Row:
    """The figures of one measurement as a flat dictionary."""
    flat = _count("publish", figures.publish)
    if figures.consume is not None:
        flat |= _count("consume", figures.consume)
    if figures.half_rate is not None:
        flat |= _latency("half_rate", figures.half_rate)
    if figures.alone is not None:
        flat |= _latency("alone", figures.alone)
    return flat


def _count(name: str, count: Count) -> Row:
    return {f"{name}_per_second": count.per_second, f"{name}_load_cpu_share": count.load_cpu_share}


def _latency(name: str, latency: Latency) -> Row:
    flat = dataclasses.asdict(latency)
    return {f"{name}_{key}": flat[key] for key in ("p50_ms", "p99_ms", "max_ms", "per_second")}


def medians(rows: Sequence[Row]) -> Row:
    return {name: statistics.median(each[name] for each in rows) for name in rows[0]}


def ratios(rounds: Mapping[str, Sequence[Row]]) -> dict[str, Row]:
    """Penstock relative to another server, for each figure: the median of the rounds, and the extremes.

    Both are measured in the same round, so the machine's drift between rounds does not affect the ratio.
    """
    found: dict[str, Row] = {}
    for name, mine, figure, other in RATIOS:
        pairs = zip(rounds.get(mine, ()), rounds.get(other, ()), strict=False)
        if values := [ours[figure] / theirs[figure] for ours, theirs in pairs]:
            found[name] = {"median": statistics.median(values), "least": min(values), "most": max(values)}
    return found


def show(console: Console, targets: Iterable[Target], by_target: Mapping[str, Row]) -> None:
    table = Table(title=f"{CONDITIONS}: medians")
    table.add_column("server")
    for heading in (
        "publish/s",
        "consume+ack/s",
        "p50 / p99 / max ms\nat half rate",
        "p50 / p99 ms\n1 connection",
    ):
        table.add_column(heading, justify="right")
    shown = [target for target in targets if target.name in by_target]
    for target in sorted(shown, key=lambda target: -by_target[target.name]["publish_per_second"]):
        table.add_row(target.title, *_cells(by_target[target.name]))
    console.print(table)
    if any(_limited_by_load(flat, name) for flat in by_target.values() for name in ("publish", "consume")):
        console.print("~ the load used its whole core: the server may be faster than this")
    for target in shown:
        if target.note:
            console.print(f"{target.title}: {target.note}", style="dim")


def _cells(flat: Row) -> list[str]:
    return [
        _rate(flat, "publish"),
        _rate(flat, "consume"),
        _milliseconds(flat, "half_rate", ("p50_ms", "p99_ms", "max_ms")),
        _milliseconds(flat, "alone", ("p50_ms", "p99_ms")),
    ]


def _rate(flat: Row, name: str) -> str:
    if f"{name}_per_second" not in flat:
        return ""
    mark = "~" if _limited_by_load(flat, name) else ""
    return f"{mark}{flat[f'{name}_per_second']:,.0f}"


def _limited_by_load(flat: Row, name: str) -> bool:
    return flat.get(f"{name}_load_cpu_share", 0) > LOAD_LIMIT_SHARE


def _milliseconds(flat: Row, name: str, parts: Sequence[str]) -> str:
    if f"{name}_{parts[0]}" not in flat:
        return ""
    return " / ".join(f"{flat[f'{name}_{part}']:.2f}" for part in parts)


def show_ratios(console: Console, found: Mapping[str, Row]) -> None:
    table = Table(title="Penstock relative to the others")
    table.add_column("ratio")
    table.add_column("median", justify="right")
    table.add_column("range of the rounds", justify="right")
    table.add_column("better is")
    for name, value in found.items():
        better = "less" if "p99" in name or "p50" in name else "more"
        extremes = f"{value['least']:.2f} to {value['most']:.2f}"
        table.add_row(name.replace("_", " "), f"{value['median']:.2f}", extremes, better)
    if found:
        console.print(table)


def write_json(path: Path, content: Mapping[str, object]) -> None:
    path.write_text(json.dumps(content, indent=2, default=str) + "\n")


def draw(path: Path, targets: Iterable[Target], by_target: Mapping[str, Row], machine: Mapping[str, object]) -> None:
    """Horizontal bars, publish and consume+ack side by side, fastest publisher on top."""
    # Imported late: it is slow to load, and the processes of the load import this package too.
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = [target for target in targets if target.name in by_target]
    shown.sort(key=lambda target: by_target[target.name]["publish_per_second"])
    figure, panels = pyplot.subplots(1, 2, sharey=True, figsize=(12, 1.2 + 0.5 * len(shown)), layout="constrained")
    for panel, (key, title) in zip(
        panels,
        (("publish_per_second", "publish, messages a second"), ("consume_per_second", "consume and acknowledge")),
        strict=True,
    ):
        values = [by_target[target.name].get(key, 0) for target in shown]
        colours = ["#1f6f8b" if target.name.startswith("penstock") else "#b8c4cc" for target in shown]
        bars = panel.barh([target.title for target in shown], values, color=colours, height=0.7)
        panel.bar_label(bars, labels=[f"{value:,.0f}" if value else "" for value in values], padding=4)
        panel.set_title(title, loc="left", fontsize=11)
        panel.set_xlim(0, max(values) * 1.15)
        panel.xaxis.set_visible(False)
        panel.tick_params(axis="y", length=0)
        for side in ("top", "right", "bottom", "left"):
            panel.spines[side].set_visible(False)
    where = f"{machine['cpus']} CPUs, {machine['filesystem']}, {str(machine['date'])[:10]}"
    figure.supxlabel(
        f"{CONDITIONS}, one core for the server; {where}",
        fontsize=8,
        color="#666666",
    )
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
