"""kill -9 under traffic in all dialects, as users run it: `penstock torture`, two runs at a time.

TORTURE=long      1,000 kills in each of two runs instead of 8 in one
TORTURE_SEED=n    the choices of an earlier run (the kernel's scheduling is not ours to repeat)
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import subprocess
from pathlib import Path

import pytest

from penstock.torture.run import end
from tests.support.command_line import COMMAND, environment
from tests.support.effort import LONG

RUNS = 2 if LONG else 1
KILLS = 1000 if LONG else 8
SECONDS_MAX = 2 * 3600 if LONG else 600
EVERY_SECONDS = 0.3


def start(seed: str, path: Path) -> subprocess.Popen[str]:
    options = ["--faults", "kill,torn", "--every", str(EVERY_SECONDS), "--count", str(KILLS), "--minutes", "600"]
    command = [*COMMAND, "torture", "--seed", seed, "--dir", str(path), "--json", *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())


@pytest.mark.torture
@pytest.mark.timeout(SECONDS_MAX)
def test_no_promise_is_broken_by_kills_under_traffic_in_all_dialects(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = os.environ.get("TORTURE_SEED") or str(secrets.randbits(32))
    runs = {f"{first}-{number}": start(f"{first}-{number}", tmp_path) for number in range(RUNS)}
    for seed, run in runs.items():
        answer, said = run.communicate(timeout=SECONDS_MAX)
        assert run.returncode == 0, f"seed {seed}\n{said[-8000:]}"
        found = json.loads(answer)
        kills = sum(fault["count"] for fault in found["faults"].values())
        operations = sum(found["operations"].values())
        with capsys.disabled():
            print(f"\ntorture: seed {seed}, {kills} kills, {operations} operations, 0 violations", end="", flush=True)
        assert kills >= KILLS
        assert found["operations"].keys() >= {"push", "mqs", "nq", "etzel", "glovebox", "native"}


def test_a_run_ends_though_a_client_loses_a_cancellation() -> None:
    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.Event().wait()

    async def run() -> bool:
        task = asyncio.create_task(stubborn())
        await asyncio.sleep(0)
        await asyncio.wait_for(end([task]), 30)
        return task.cancelled()

    assert asyncio.run(run())
