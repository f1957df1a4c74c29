"""Every transcript holds against a real broker: one test a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.broker import Broker, StartBroker
from tests.conformance.transcript import Mismatch, Player, load

HERE = Path(__file__).parent
TRANSCRIPTS = sorted(HERE.glob("*/*.toml"))


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=[f"{path.parent.name}/{path.stem}" for path in TRANSCRIPTS])
def test_the_broker_answers_as_the_transcript_says(path: Path, request: pytest.FixtureRequest) -> None:
    transcript = load(path)
    if transcript.settings is None:
        broker: Broker = request.getfixturevalue("broker")
    else:
        start_broker: StartBroker = request.getfixturevalue("start_broker")
        broker = start_broker(*transcript.settings)
    wrong: Mismatch | None = None
    try:
        Player(broker, path.stem.replace("_", "-")).play(transcript)
    except Mismatch as mismatch:
        wrong = mismatch
    if wrong is not None:
        pytest.fail(f"{path.relative_to(HERE)}, {wrong}", pytrace=False)
