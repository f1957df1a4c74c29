"""`penstock up`: run a broker and the pipeline that fills its lake, as two processes.

The broker starts first and does not depend on the pipeline: it continues when the pipeline fails. A failed pipeline
is restarted after a growing pause. A signal stops both, the pipeline first.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO, Annotated

import typer

from penstock import __version__
from penstock.cli.child_broker import listening
from penstock.cli.extras import how_to_install
from penstock.cli.pipeline import LakeOption
from penstock.cli.processes import start, stop
from penstock.errors import PenstockError
from penstock.limits import PIPELINE_PAUSE_SECONDS_MAX

_STEADY_SECONDS = 60.0  # A pipeline that ran this long started successfully, so the next pause is short again.
_STOP_SECONDS = 60.0
_NICENESS = 10  # Of the pipeline: clients of the broker come first.
_BANNER = """
  Penstock {version} is running. Press Ctrl-C to stop it.

  Console              {url}/
  HTTP and WebSocket   {url}
  JSON lines           {lines}
  Data                 {data}
  Tables               {lake} (the first rows take about a minute)

  Publish and receive a message, in another terminal:

    curl {header}-d 'hello' '{url}/v1/publish?topic=greetings'
    curl {header}'{url}/v1/queues/greetings/messages'

  Documentation: README.md and docs/; the HTTP API is described at {url}/openapi.json

"""


def up(
    data: Annotated[str | None, typer.Option(help="The data directory of the broker.")] = None,
    http: Annotated[str | None, typer.Option(help="HOST:PORT for HTTP.")] = None,
    lines: Annotated[str | None, typer.Option(help="HOST:PORT for JSON lines.")] = None,
    tls_certificate: Annotated[str | None, typer.Option(help="As in serve.")] = None,
    tls_key: Annotated[str | None, typer.Option(help="As in serve.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any other setting. May be repeated."),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="The broker's settings file.")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="As in serve.")] = False,
    lake: LakeOption = Path("lake"),
    master: Annotated[str, typer.Option(help="Where Spark runs.")] = "local[*]",
) -> None:
    """Start a broker and its pipeline. Stop both with SIGTERM or Ctrl-C."""
    from penstock.server.settings import load

    own = {
        "data": ("--data", data),
        "http.address": ("--http", http),
        "lines.address": ("--lines", lines),
        "tls.certificate": ("--tls-certificate", tls_certificate),
        "tls.key": ("--tls-key", tls_key),
    }
    given = {key: value for key, (_, value) in own.items() if value is not None}
    loaded = load(config, os.environ, settings or [], given)
    flags = [part for flag, value in own.values() for part in _flag(flag, value)]
    flags += [flag for setting in settings or [] for flag in ("--set", setting)]
    flags += [*_flag("--config", config), *(["--insecure"] if insecure else [])]
    if loaded.logging.format == "auto" and sys.stderr.isatty():
        flags += ["--set", "logging.format=text"]  # The broker writes to a pipe, which we copy to a terminal.
    if not loaded.lake.directory:
        flags += ["--set", f"lake.directory={lake.absolute()}"]
    token = next(iter(loaded.auth.tokens), "")
    certificate = loaded.tls.certificate
    raise typer.Exit(_Supervisor(flags, lake, ["--master", master], token, certificate).run())


def _flag(name: str, value: object) -> list[str]:
    return [] if value is None else [name, str(value)]


class _Supervisor:
    """Runs both processes until a signal arrives or the broker ends."""

    def __init__(
        self, broker_flags: list[str], lake: Path, spark_flags: list[str], token: str, certificate: str
    ) -> None:
        self._broker_flags = broker_flags
        self._lake = lake
        self._spark_flags = spark_flags
        self._token = token
        self._certificate = certificate  # Of the broker; empty if it does not use TLS.
        self._stopping = threading.Event()
        self._url: str | None = None
        self._listening = threading.Event()
        self._pipeline: subprocess.Popen[str] | None = None

    def run(self) -> int:
        """Returns the exit code of the broker."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._stopping.set())
        broker = start("serve", *self._broker_flags, stderr=subprocess.PIPE)
        threading.Thread(target=self._pass_on_log, args=(broker.stderr,), daemon=True).start()
        keeper = threading.Thread(target=self._keep_pipeline, name="pipeline", daemon=True)
        keeper.start()
        while broker.poll() is None and not self._stopping.wait(0.1):
            pass
        self._stopping.set()
        self._listening.set()
        stop(self._pipeline)
        keeper.join(_STOP_SECONDS)
        return stop(broker)

    def _pass_on_log(self, log: IO[str]) -> None:
        for line in log:
            sys.stderr.write(line)
            sys.stderr.flush()
            found = {} if self._url else listening(line)
            if found:
                self._url = _url(found["http"], self._certificate)
                self._greet(found)
                self._listening.set()

    def _greet(self, listening: dict[str, str]) -> None:
        if sys.stderr.isatty():
            header = '-H "Authorization: Bearer $PENSTOCK_TOKEN" ' if self._token else ""
            header += f"--cacert {self._certificate} " if self._certificate else ""
            about = listening | {"url": self._url}
            sys.stderr.write(_BANNER.format(version=__version__, lake=self._lake, header=header, **about))

    def _keep_pipeline(self) -> None:
        self._listening.wait()
        missing = _missing()
        if missing:
            _print(f"the broker works, but no table is filled: {missing}")
            return
        pause = 1.0
        while not self._stopping.is_set():
            began = time.monotonic()
            code = self._run_pipeline()
            if self._stopping.is_set():
                return
            pause = 1.0 if time.monotonic() - began > _STEADY_SECONDS else pause
            _print(f"ended with exit code {code}; restarting it in {pause:.0f} s")
            self._stopping.wait(pause)
            pause = min(2 * pause, PIPELINE_PAUSE_SECONDS_MAX)

    def _run_pipeline(self) -> int:
        assert self._url is not None
        child = self._pipeline = start(
            *("pipeline", "run", "--url", self._url, "--lake", str(self._lake), *self._spark_flags),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            variables={"PENSTOCK_TOKEN": self._token, "PENSTOCK_CA": self._certificate},
        )
        with contextlib.suppress(ProcessLookupError):  # It may have ended at once.
            os.setpriority(os.PRIO_PROCESS, child.pid, os.getpriority(os.PRIO_PROCESS, 0) + _NICENESS)
        if self._stopping.is_set():
            stop(child)  # The signal came while the process was started.
        assert child.stdout is not None
        for line in child.stdout:
            _print(line.rstrip("\n"))
        return child.wait()


def _url(address: str, certificate: str) -> str:
    """Where the pipeline reaches the broker: with TLS, by a name in its certificate."""
    reachable = _reachable(address)
    if not certificate:
        return f"http://{reachable}"
    from penstock.shells.certificate import from_pem

    host, _, port = reachable.rpartition(":")
    names = from_pem(Path(certificate).read_bytes()).names
    known = [name for name in (host.strip("[]"), "localhost", *names) if name in names and "*" not in name]
    return f"https://{known[0] if known else host}:{port}"


def _reachable(address: str) -> str:
    """An address to connect to, in place of one that only a server can bind."""
    return re.sub(r"^(0\.0\.0\.0|\[::\]):", "127.0.0.1:", address)


def _missing() -> str:
    """A message about what the pipeline needs and this machine lacks, empty if nothing."""
    try:
        from penstock.pipeline.session import check_java

        check_java()
    except ImportError as error:
        return how_to_install(error) or str(error)
    except PenstockError as error:
        return str(error)
    return ""


def _print(line: str) -> None:
    sys.stderr.write(f"{line}\n" if line.startswith("pipeline ") else f"pipeline: {line}\n")
    sys.stderr.flush()
