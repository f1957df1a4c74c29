"""How hard the generated tests try: seconds by default, far longer with TORTURE=long in the environment."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

LONG = os.environ.get("TORTURE") == "long"


def effort(examples: int, steps: int = 50) -> settings:
    return settings(
        max_examples=examples * 50 if LONG else examples,
        stateful_step_count=steps * 2 if LONG else steps,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
