"""Every transcript holds against a real broker: one test a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker import Broker, Site, StartBroker
from tests.support.certificates import Pair
from tests.support.effort import LONG
from tests.support.sites import TWO_WORKERS, started
from tests.support.transcript import Mismatch, Player, Transcript, load

HERE = Path(__file__).parent
OF_SHARDS = sorted(HERE.glob("sharded/*.toml"))
TRANSCRIPTS = sorted({*HERE.glob("*/*.toml")} - {*OF_SHARDS})
TIMED_TRIES = 5


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=[f"{path.parent.name}/{path.stem}" for path in TRANSCRIPTS])
def test_the_broker_answers_as_the_transcript_says(path: Path, request: pytest.FixtureRequest) -> None:
    transcript = load(path)
    if transcript.settings is None:
        broker: Broker = request.getfixturevalue("broker")
    else:
        start_broker: StartBroker = request.getfixturevalue("start_broker")
        broker = start_broker(*transcript.settings)
    play(path, transcript, broker)


# What is about lines alone stays there, and so does what takes long for reasons that the transport has no part in.
TALKED = [
    path
    for path in TRANSCRIPTS
    if path.parent.name == "etzel" and path.stem not in ("lines", "token", "websocket", "timeout", "tail", "late_ack")
]


@pytest.mark.parametrize("path", TALKED, ids=[path.stem for path in TALKED])
def test_etzel_is_the_same_over_websocket(path: Path, broker: Broker) -> None:
    play(path, load(path), broker, talk="/connect")


# Not those that need other settings, and not those that take long for reasons that the transport has no part in.
SLOW = ("timeout", "timeouts", "tail", "late_ack", "visibility", "retry", "extend", "other_dialects", "delay")
ENCRYPTED = [path for path in TRANSCRIPTS if load(path).settings is None and path.stem not in SLOW]


@pytest.fixture(scope="module")
def secure_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("secure-broker")
    pair = Pair(folder, "broker")
    broker = Broker(folder / "data", *pair.settings, trust=pair.trusting()).start()
    yield broker
    broker.stop()


@pytest.mark.parametrize("path", ENCRYPTED, ids=[f"{path.parent.name}/{path.stem}" for path in ENCRYPTED])
def test_the_broker_answers_the_same_over_tls(path: Path, secure_broker: Broker) -> None:
    play(path, load(path), secure_broker)


def test_a_body_that_is_refused_while_it_is_sent_is_answered_over_tls(secure_broker: Broker) -> None:
    with secure_broker.connect() as connection:
        assert connection.refused_early("PUT /queues/large HTTP/1.1", 4 << 20).status == 413
        assert connection.read_to_end() == b""


# ── Several processes ─────────────────────────────────────────────────────────────────────────────────────────

# One story a dialect, and all of them in the long run.
SHORT = (
    "publish_and_fetch",
    "post_and_fetch",
    "publish_and_receive",
    "several_queues",
    "queue_messages",
    "durable_session",
)
# What differs with several shards, as docs/workers.md says, is told anew.
ANEW = {path.stem for path in OF_SHARDS}
STORIES = [path for path in TRANSCRIPTS if f"{path.parent.name}_{path.stem}" not in ANEW] + OF_SHARDS
SHARDED = [path for path in STORIES if LONG or path.stem in SHORT or path in OF_SHARDS]


@pytest.fixture(scope="module")
def sharded_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = Broker(tmp_path_factory.mktemp("sharded-broker") / "data", flags=TWO_WORKERS).start()
    yield broker
    broker.stop()


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Site]:
    with started("two nodes", tmp_path_factory.mktemp("two-nodes"), request) as found:
        yield found


@pytest.mark.torture
@pytest.mark.parametrize("path", SHARDED, ids=[f"{path.parent.name}/{path.stem}" for path in SHARDED])
def test_two_workers_with_four_shards_answer_the_same(path: Path, request: pytest.FixtureRequest) -> None:
    transcript = load(path)
    if transcript.settings is None:
        broker: Broker = request.getfixturevalue("sharded_broker")
    else:
        start_broker: StartBroker = request.getfixturevalue("start_broker")
        broker = start_broker(*transcript.settings, flags=TWO_WORKERS)
    play(path, transcript, broker)


# In the short run not those that need nodes of their own, and not those that are slow for reasons of their own. The
# backup of several shards in PostgreSQL is one of PostgreSQL.
ON_NODES = [
    path
    for path in STORIES
    if not path.stem.endswith("backup") and (LONG or (path.stem not in SLOW and load(path).settings is None))
]


@pytest.mark.parametrize("path", ON_NODES, ids=[f"{path.parent.name}/{path.stem}" for path in ON_NODES])
def test_two_nodes_on_postgresql_answer_the_same_whichever_is_asked(
    path: Path, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    transcript = load(path)
    if transcript.settings is None:
        play(path, transcript, request.getfixturevalue("two_nodes"))
        return
    with started("two nodes", tmp_path, request, *transcript.settings) as own:
        play(path, transcript, own)


def play(path: Path, transcript: Transcript, broker: Site, talk: str | None = None) -> None:
    """A machine may be too busy for a story about time, so such a story may be told again."""
    wrongs: list[Mismatch] = []
    for _ in range(TIMED_TRIES if transcript.is_timed else 1):
        try:
            Player(broker, path.stem.replace("_", "-"), talk).play(transcript)
            return
        except Mismatch as mismatch:
            wrongs.append(mismatch)
    pytest.fail(f"{path.relative_to(HERE)}, {wrongs[0]}", pytrace=False)
