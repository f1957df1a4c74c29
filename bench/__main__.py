"""Compares Penstock with the limit of its design and with other brokers, in one run and one table.

python -m bench [--quick] [--only NAME,…] [--seconds N]   all servers, taking turns
python -m bench deep | churn | delayed                    how the broker behaves with very many messages
python -m bench idle | wake                               what waiting clients cost, and how soon they are woken
python -m bench topics                                    what a message for many channels costs
python -m bench spectator                                 what a reader of the Event Log costs the publishers
python -m bench history                                   what it costs to detect unchanged messages
python -m bench push                                      how fast messages are pushed, also next to dead endpoints
python -m bench access                                    what authorisation costs, with 10,000 tokens
python -m bench tls                                       what TLS costs, next to a bare server with the TLS of uvloop
python -m bench link                                      what it costs to publish through another process
python -m bench workers                                   what messages cost with 1, 2 and 4 workers
python -m bench hung                                      what clients notice of a worker that hangs
python -m bench courier                                   how much later a channel of another shard gets a message
python -m bench store                                     what a log in PostgreSQL costs, next to one in files
python -m bench sizing                                    what messages of 1 KB cost, for docs/deploy/sizing.md
python -m bench unread                                    what answers cost that nobody reads
python -m bench reshard                                   how long it takes to move a store to several shards
python -m bench checkout --against DIR                    how fast this checkout is, next to another one
python -m bench keyed --against DIR                       what object and key cost, next to another one
"""

import argparse
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench import ceiling, machine, penstock, report, runs
from bench.driver import StoppedError
from bench.peers import beanstalkd, nats, postgresql, rabbitmq, redis
from bench.targets import Figures, Plan, Target

HERE = Path(__file__).parent
TARGETS: tuple[Target, ...] = (
    *penstock.TARGETS,
    *rabbitmq.TARGETS,
    *redis.TARGETS,
    *beanstalkd.TARGETS,
    *nats.TARGETS,
    *postgresql.TARGETS,
    *ceiling.TARGETS,
)
INSTALL_SECONDS_MAX = 600
BUSY_SHARE_MAX = 0.05
PLAIN_WIDTH = 120


def main() -> int:
    arguments = parse()
    console = Console() if sys.stdout.isatty() else Console(width=PLAIN_WIDTH)
    kind = machine.filesystem(arguments.scratch)
    if kind in machine.MEMORY_FILESYSTEMS:
        console.print(f"{arguments.scratch} is on {kind}: fsync has no effect there. Choose another --scratch.")
        return 2
    if arguments.what != "all":
        given = {"against": arguments.against} if arguments.against else {}
        return runs.run(arguments.what, console, arguments.scratch, arguments.messages, **given)
    return compare(console, arguments)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("what", nargs="?", default="all", choices=("all", *runs.RUNS))
    parser.add_argument("--quick", action="store_true", help="one round of one second each")
    parser.add_argument("--only", type=lambda names: names.split(","), default=None, metavar="NAME,…")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of each timed section")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds; the medians are shown")
    parser.add_argument("--messages", type=int, default=None, help="how many messages, connections or rounds")
    about = "a directory on the disk to measure"
    parser.add_argument("--scratch", type=machine.scratch, default=Path("/var/tmp"), help=about)
    parser.add_argument(
        "--against", type=Path, default=None, metavar="DIR", help="the other checkout, where one is needed"
    )
    arguments = parser.parse_args()
    if (arguments.what in runs.AGAINST) != bool(arguments.against):
        parser.error(f"{' and '.join(runs.AGAINST)} need --against DIR, the other checkout; nothing else does")
    if arguments.against and not (arguments.against / "src" / "penstock").is_dir():
        parser.error(f"{arguments.against} is no checkout of Penstock: it has no src/penstock")
    if arguments.quick:
        arguments.seconds, arguments.rounds = 1.0, 1
    names = {target.name for target in TARGETS}
    if unknown := set(arguments.only or ()) - names:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known names: {', '.join(sorted(names))}")
    return arguments


def compare(console: Console, arguments: argparse.Namespace) -> int:
    wanted = [target for target in TARGETS if not arguments.only or target.name in arguments.only]
    targets = [target for target in wanted if available(console, target)]
    plan = Plan(arguments.seconds, min(1.0, arguments.seconds), arguments.scratch)
    facts = machine.facts(plan.scratch)
    rows: dict[str, list[report.Row]] = {target.name: [] for target in targets}
    failures: dict[str, str] = {}
    busy: list[float] = []
    with progress_line(console) as progress:
        task = progress.add_task("", total=arguments.rounds * len(targets))
        for turn in range(arguments.rounds):
            busy.append(quiet_enough(console))
            # The servers take turns, because the speed of the machine drifts and the ratios must not.
            for target in targets:
                progress.update(task, description=f"round {turn + 1}: {target.title}")
                if target.name not in failures:
                    try:
                        rows[target.name].append(report.row(checked(target.measure(plan))))
                    except Exception as error:
                        # If one server fails, the others are still measured.
                        failures[target.name] = f"{type(error).__name__}: {error}"
                        complaint = f"{target.title} failed: {failures[target.name]}"
                        console.print(complaint, style="red", markup=False)
                progress.advance(task)
    finish(console, arguments, facts | {"busy_shares": busy}, rows, failures)
    return 1 if failures else 0


def finish(
    console: Console,
    arguments: argparse.Namespace,
    facts: dict[str, object],
    rows: dict[str, list[report.Row]],
    failures: dict[str, str],
) -> None:
    whole = {name: each for name, each in rows.items() if name not in failures}
    by_target = {name: report.medians(each) for name, each in whole.items()}
    ratios = report.ratios(whole)
    report.show(console, TARGETS, by_target)
    report.show_ratios(console, ratios)
    content = {
        "machine": facts,
        "seconds": arguments.seconds,
        "rounds": arguments.rounds,
        "medians": by_target,
        "ratios": ratios,
        "every_round": rows,
        "failures": failures,
    }
    if arguments.only or arguments.quick:
        # Only a whole run may replace the published figures.
        report.write_json(HERE / "results-partial.json", content)
        return
    report.write_json(HERE / "results.json", content)
    drawn = [target for target in TARGETS if target.name != ceiling.NAME]
    report.draw(HERE.parent / "docs" / "performance.png", drawn, by_target, facts)


def checked(figures: Figures) -> Figures:
    """A wrong answer fails the run: speed without correctness is not measured."""
    for part in (figures.publish, figures.consume, figures.half_rate, figures.alone):
        if part is not None and part.errors:
            raise StoppedError(f"{part.errors} wrong answers, such as {part.complaint!r}")
    return figures


def available(console: Console, target: Target) -> bool:
    """Whether the server is installed. Installs it if possible; otherwise prints why it is skipped."""
    if target.find() is not None:
        return True
    if target.package is None:
        console.print(f"{target.title}: skipped, it is not installed (run `make setup`)")
        return False
    console.print(f"{target.title}: installing {target.package}")
    try:
        command = [str(HERE / "install.sh"), target.package]
        result = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS_MAX)
        problem = result.stderr.strip().splitlines()[-1:] if result.returncode else []
    except subprocess.TimeoutExpired:
        problem = [f"the installation took over {INSTALL_SECONDS_MAX} s"]
    if target.find() is not None:
        return True
    console.print(f"{target.title}: skipped, {''.join(problem) or 'the package did not bring its program'}")
    return False


def quiet_enough(console: Console) -> float:
    busy = machine.busy_share()
    if busy > BUSY_SHARE_MAX:
        console.print(f"others use {busy:.0%} of this machine: absolute figures will be low", style="yellow")
    return busy


def progress_line(console: Console) -> Progress:
    columns = (BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    # Redrawn only once a second: drawing takes time from the cores under test.
    return Progress(*columns, console=console, refresh_per_second=1, transient=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)  # By now the servers are stopped and their directories removed.
