"""How large the log is, how much room the disk has, and for how long that will do at today's rate."""

from __future__ import annotations

from typing import Any, NamedTuple

SAMPLE_SECONDS, SAMPLES = 60, 60
"""What was written in the last hour."""

TIGHT_BYTES, TIGHT_PART = 1 << 30, 0.05
"""A disk with less room than this, or than this part of it, needs a person …"""

TIGHT_SECONDS = 7 * 86400.0
"""… and so does one that will be full so soon."""

FAST_SECONDS = 86400.0
"""… or that other files than the log fill so soon."""

HOUR_SECONDS = SAMPLE_SECONDS * SAMPLES

_STEADY_SECONDS = 600  # What other files took in a shorter time may be a file that is gone soon.


class Disk(NamedTuple):
    """The disk, and the log on it."""

    log_bytes: int
    segments: int
    free_bytes: int
    total_bytes: int
    written_per_day: float | None  # In bytes, as in the last hour; None: not known yet.
    retention_seconds: int
    retention_bytes: int
    measured_seconds: int = HOUR_SECONDS  # In what time.
    free_falls_per_day: float | None = None  # In bytes, because of the log and of other files; None: not known yet.

    def document(self) -> dict[str, Any]:
        return self._asdict() | {
            "full_in_seconds": self.full_in(),
            "warning": self.warning(),
            "advice": self.advice(),
        }

    def full_in(self) -> float | None:
        """When the disk will be full, in seconds. None: never at this rate, because old events are removed in time,
        or not known. What waits in queues for longer than events are kept is not foreseen."""
        if not self.written_per_day:
            return None
        kept = min(self.retention_bytes, self.written_per_day / 86400 * self.retention_seconds)
        if kept - self.log_bytes < self.free_bytes:
            return None
        return round(self.free_bytes / self.written_per_day * 86400)

    def filled_in(self) -> float | None:
        """When other files than the log will have filled the disk, in seconds. None: not soon, or not known."""
        if self.free_falls_per_day is None or self.measured_seconds < _STEADY_SECONDS:
            return None
        others = self.free_falls_per_day - (self.written_per_day or 0)
        seconds = self.free_bytes / others * 86400 if others > 0 else FAST_SECONDS
        return seconds if seconds < FAST_SECONDS else None

    def warning(self) -> str:
        """Why the disk needs a person; empty if it does not."""
        full_in, filled_in = self.full_in(), self.filled_in()
        if full_in is not None and full_in < TIGHT_SECONDS:
            return f"the disk is full in {_in_words(full_in)} at {self._rate()}"
        if filled_in is not None:
            return f"other files than the log fill the disk in {_in_words(filled_in)} at {self._rate()}"
        if self.free_bytes < max(TIGHT_BYTES, TIGHT_PART * self.total_bytes):
            return (
                f"the disk has {self.free_bytes / (1 << 30):.1f} GiB of {self.total_bytes / (1 << 30):.0f} GiB left"
            )
        return ""

    def advice(self) -> str:
        """What to do about the warning; empty if there is none. It names the log only if the log is the cause."""
        full_in = self.full_in()
        if full_in is not None and full_in < TIGHT_SECONDS:
            return "Lower log.retention_seconds or log.retention_bytes, or make room."
        if self.filled_in() is not None:
            return "Find out what else writes to this disk (du), and make room: the log is not the cause."
        return "Make room on this disk." if self.warning() else ""

    def _rate(self) -> str:
        if self.measured_seconds >= HOUR_SECONDS - SAMPLE_SECONDS:
            return "the rate of the last hour"
        return f"the rate since start, {self.measured_seconds / 60:.0f} minutes ago"


def _in_words(seconds: float) -> str:
    return f"{seconds / 3600:.0f} hours" if seconds >= 7200 else f"{seconds / 60:.0f} minutes"


def together(disks: list[Disk]) -> Disk:
    """Of several logs. They are taken to be on one disk: the fullest, if they are not."""
    fullest = min(disks, key=lambda each: each.free_bytes)
    written = [each.written_per_day for each in disks if each.written_per_day is not None]
    return Disk(
        sum(each.log_bytes for each in disks),
        sum(each.segments for each in disks),
        fullest.free_bytes,
        fullest.total_bytes,
        sum(written) if len(written) == len(disks) else None,
        fullest.retention_seconds,
        sum(each.retention_bytes for each in disks),
        min(each.measured_seconds for each in disks),
        fullest.free_falls_per_day,
    )
