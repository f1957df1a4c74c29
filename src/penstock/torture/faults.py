"""What goes wrong, one fault after the other, and how long the broker needs to serve again after each."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path

from penstock.torture.checker import Violation, violation
from penstock.torture.history import Fault, Started
from penstock.torture.process import DidNotStartError
from penstock.torture.traffic.stage import Stage
from penstock.torture.traffic.wire import Http, UnexpectedAnswer

KINDS = {
    "kill": "kill -9, sometimes again while the broker recovers",
    "torn": "kill -9 in the middle of a write",
    "stop": "SIGSTOP, and SIGCONT up to 6 seconds later",
    "clock": "the system clock is set, by up to 20 seconds",
    "full": "the disk is full for up to 4 seconds",
    "sync": "fsync fails",
    "flip": "bytes of stored data change while the broker is down, and are restored later",
}
AGAIN_SHARE = 0.3
CLOCK_SECONDS_MAX = 20.0
SERVES_SECONDS_MAX = 60.0


class ComesNotBackError(Exception):
    """The broker does not serve although the fault is over."""


class Faults:
    def __init__(self, stage: Stage, kinds: list[str]) -> None:
        self.stage = stage
        self.process = stage.process
        self.kinds = kinds
        self.seconds: dict[str, list[float]] = defaultdict(list)  # Until the broker served again, by kind.
        self.violations: list[Violation] = []
        self.started_at = 0.0
        self._chance = stage.chance("faults")
        self._clock = 0.0  # What the running process began with.
        self._deeds: dict[str, Callable[[random.Random], Awaitable[float]]] = {
            "kill": self._kill,
            "torn": self._torn,
            "stop": self._stop,
            "clock": self._set_clock,
            "full": self._full,
            "sync": self._sync,
            "flip": self._flip,
        }

    @property
    def count(self) -> int:
        return sum(map(len, self.seconds.values()))

    async def start(self) -> float:
        seconds = await self.process.start()
        jumped, self._clock = self.process.state.clock != self._clock, self.process.state.clock
        self.started_at = self.stage.now
        self.stage.history.record(Started(self.started_at, "broker", round(seconds, 3), jumped))
        self.stage.alive.set()
        return seconds

    async def strike(self) -> None:
        """One fault, until the broker serves again."""
        kind = self._chance.choice(self.kinds)
        try:
            self.seconds[kind].append(await self._deeds[kind](self._chance))
        except (DidNotStartError, ComesNotBackError) as error:
            self.violations.append(violation("comes-back", "broker", self.stage.now, f"{kind}: {error}"))

    def _note(self, kind: str, detail: str = "") -> None:
        self.stage.history.record(Fault(self.stage.now, "broker", kind, detail))

    # ── The process

    async def _kill(self, chance: random.Random) -> float:
        self._note("kill")
        await self.end()
        while chance.random() < AGAIN_SHARE:
            await self.process.spawn()
            if await self.process.ended_within(chance.uniform(0, 0.6)):
                raise DidNotStartError(f"it ended while it recovered\n{self.process.last_lines()}")
            self._note("kill", "while it recovers")
            await self.process.kill()
        return await self._serves_after_start()

    async def end(self) -> None:
        self.stage.alive.clear()
        await self.process.kill()

    async def _serves_after_start(self) -> float:
        began = self.stage.now
        await self.start()
        await self._serves()
        return self.stage.now - began

    async def _torn(self, chance: random.Random) -> float:
        self._note("torn")
        await self.process.command(torn=chance.random())
        if not await self.process.ended_within(5):
            await self.process.kill()
        self.stage.alive.clear()
        await self.process.command(torn=None)
        return await self._serves_after_start()

    async def _stop(self, chance: random.Random) -> float:
        seconds = chance.uniform(0.1, 6)
        self._note("stop", f"for {seconds:.1f} s")
        self.process.signal(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        self.process.signal(signal.SIGCONT)
        return await self._serves()

    # ── The clock and the disk

    async def _set_clock(self, chance: random.Random) -> float:
        seconds = chance.choice([0.0, chance.uniform(-CLOCK_SECONDS_MAX, CLOCK_SECONDS_MAX)])
        self._note("clock", f"{seconds:+.1f} s")
        await self.process.command(clock=seconds)
        return await self._serves()

    async def _full(self, chance: random.Random) -> float:
        self._note("full")
        await self.process.command(full=True)
        await asyncio.sleep(chance.uniform(0.5, 4))
        await self.process.command(full=False)
        self._note("full", "over")
        return await self._serves()

    async def _sync(self, chance: random.Random) -> float:
        self._note("sync")
        await self.process.command(sync_fails=chance.randint(1, 3))
        await asyncio.sleep(chance.uniform(0.2, 1))
        await self.process.command(sync_fails=0)
        return await self._serves()

    async def _serves(self) -> float:
        """Until the broker says that it can store messages; the seconds that took."""
        began = self.stage.now
        while self.stage.now < began + SERVES_SECONDS_MAX:
            if await self._is_healthy():
                return self.stage.now - began
            if not self.process.running:
                raise ComesNotBackError(f"the broker has ended\n{self.process.last_lines()}")
            await asyncio.sleep(0.02)
        raise ComesNotBackError(f"not healthy after {SERVES_SECONDS_MAX:.0f} s\n{self.process.last_lines()}")

    async def _is_healthy(self) -> bool:
        try:
            http = await Http.open(self.process)
            try:
                return (await http.request("GET", "/health")).status == 200
            finally:
                http.close()
        except (OSError, UnexpectedAnswer):
            return False

    async def _flip(self, chance: random.Random) -> float:
        """The broker may refuse to start, or set messages aside. With the bytes restored, all is as it was."""
        await self.end()
        flips = Flips(self.process.data, chance)
        self._note("flip", str(flips))
        try:
            await self.start()
            await asyncio.sleep(chance.uniform(0.5, 4))
        except DidNotStartError:
            pass  # It has found the damage.
        await self.end()
        flips.restore()
        self._note("flip", "restored")
        return await self._serves_after_start()


class Flips:
    """Bytes that were changed in finished segments or in a snapshot, and what they were."""

    def __init__(self, data: Path, chance: random.Random) -> None:
        self._places: list[tuple[Path, int, int]] = []
        # The end of the newest segment could be a torn write. Nobody can tell a flipped byte there from one.
        segments = sorted((data / "log").glob("*.log"))[:-1]
        snapshots = sorted((data / "snapshots").glob("*.snapshot"))[-1:] if chance.random() < 0.3 else []
        for path in snapshots or chance.sample(segments, min(len(segments), 2)):
            self._flip(path, chance)

    def _flip(self, path: Path, chance: random.Random) -> None:
        with path.open("r+b") as file:
            at = chance.randrange(path.stat().st_size)
            file.seek(at)
            before = file.read(1)[0]
            file.seek(at)
            file.write(bytes([before ^ 1 << chance.randrange(8)]))
        self._places.append((path, at, before))

    def restore(self) -> None:
        for path, at, before in self._places:
            if path.exists():
                with path.open("r+b") as file:
                    file.seek(at)
                    file.write(bytes([before]))

    def __str__(self) -> str:
        return ", ".join(f"{path.name} at byte {at}" for path, at, _ in self._places) or "nothing to flip yet"
