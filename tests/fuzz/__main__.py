"""`python -m tests.fuzz TARGET --seconds N`: look for bytes that break a decoder. `make fuzz` tries all targets.

With atheris installed, the search is guided by which code an input reaches; else known inputs are changed at random.
What breaks a target is written to the corpus, so that the tests fail until the decoder is mended.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
import traceback
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from tests.fuzz.corpus import HERE, keep, known_inputs
from tests.fuzz.mutation import mutations
from tests.fuzz.target import SECONDS_MAX, run_bounded

if TYPE_CHECKING:
    from tests.fuzz.target import Target

_GUIDED = find_spec("atheris") is not None
_INPUT_BYTES_MAX = 4096
_MEMORY_MB_MAX = 2048


def main() -> int:
    arguments = _arguments()
    if arguments.target == "all":
        return _fuzz_all(arguments.seconds)
    target = _target(arguments.target)
    if arguments.merge is not None:
        return _fuzz_guided(target, 0, arguments.merge)
    if _GUIDED and not arguments.plain:
        return _fuzz_guided(target, arguments.seconds)
    return _fuzz_plainly(target, arguments.seconds, arguments.seed)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("target", help="a name in tests/fuzz/registry.py, or all")
    parser.add_argument("--seconds", type=int, default=60, help="how long to try each target")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of random changes")
    parser.add_argument("--plain", action="store_true", help="random changes, also where atheris is installed")
    parser.add_argument("--merge", type=Path, help="add to the corpus what reaches new code in this folder")
    return parser.parse_args()


def _target(name: str) -> Target:
    if not _GUIDED:
        from tests.fuzz.registry import TARGETS
    else:
        atheris = import_module("atheris")
        with atheris.instrument_imports(include=["penstock"]):
            from tests.fuzz.registry import TARGETS
    return TARGETS[name]


def _fuzz_all(seconds: int) -> int:
    """Each in a process of its own: a fuzzer ends the process when it ends."""
    from tests.fuzz.registry import TARGETS

    failed = []
    for name in TARGETS:
        print(f"── {name}", flush=True)
        command = [sys.executable, "-m", "tests.fuzz", name, "--seconds", str(seconds)]
        if subprocess.run(command, check=False).returncode:
            failed.append(name)
    print(f"broken: {', '.join(failed)}" if failed else f"{len(TARGETS)} targets, none broken")
    return 1 if failed else 0


def _fuzz_guided(target: Target, seconds: int, merge: Path | None = None) -> int:
    atheris = import_module("atheris")
    scratch = Path(tempfile.gettempdir()) / "penstock-fuzz" / target.name
    for data in known_inputs(target):
        keep(scratch, data)
    kept = HERE / target.name
    kept.mkdir(parents=True, exist_ok=True)
    options = [f"-max_total_time={seconds}", f"-timeout={int(SECONDS_MAX)}", f"-rss_limit_mb={_MEMORY_MB_MAX}"]
    options += [f"-max_len={_INPUT_BYTES_MAX}", f"-artifact_prefix={kept}/", "-print_final_stats=1"]
    if merge:
        options = ["-merge=1", f"-max_len={_INPUT_BYTES_MAX}"]
    folders = [str(kept), str(merge)] if merge else [str(scratch)]
    atheris.Setup([sys.argv[0], *options, *folders], target.run)
    atheris.Fuzz()  # Ends the process.
    return 0


def _fuzz_plainly(target: Target, seconds: int, seed: int) -> int:
    known = known_inputs(target)
    until, tried = time.monotonic() + seconds, 0
    for data in mutations(known, seed):
        if time.monotonic() >= until:
            break
        try:
            run_bounded(target, data)
        except Exception:
            traceback.print_exc()
            print(f"{target.name} breaks: seed {seed}, input {tried}: {keep(HERE / target.name, data)}")
            return 1
        tried += 1
    print(f"{target.name}: {tried} inputs, none breaks it; seed {seed}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
