"""What the line server promises on the wire: framing, limits, timeouts, stops, and that nobody is lost."""

from __future__ import annotations

import json
import re
import secrets
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.broker import Broker, StartBroker, refused_start
from tests.support.line_client import LineClient
from tests.support.waiting import SECONDS_MAX, wait_until

BODY_BYTES_MAX = 1 << 20
LINE_BYTES_MAX = 8 << 20


@pytest.fixture
def queue() -> str:
    return f"lines-{secrets.token_hex(6)}"


def publish(qname: str, message: str, **more: object) -> dict[str, object]:
    return {"cmd": "PUB", "qname": qname, "message": message, **more}


def fetch(qname: str) -> dict[str, object]:
    return {"cmd": "FET", "qname": qname}


# Framing


def test_many_commands_in_one_write_are_answered_in_order(broker: Broker, queue: str) -> None:
    with LineClient(broker.lines) as client:
        client.say(*(publish(queue, str(number)) for number in range(5000)))
        uids = [client.hear()["uid"] for _ in range(5000)]
        assert len(set(uids)) == 5000
        client.say(*(fetch(queue) for _ in range(5000)))
        got = [client.hear() for _ in range(5000)]
        assert [(each["uid"], each["msg"]) for each in got] == [(uid, str(n)) for n, uid in enumerate(uids)]


def test_a_byte_at_a_time_says_the_same(broker: Broker, queue: str) -> None:
    commands = [publish(queue, "wörk"), fetch(queue), {"cmd": "ISLP", "qname": queue}, {"cmd": "huh"}]
    text = b"".join(json.dumps(each, ensure_ascii=False).encode() + b"\n" for each in commands)
    with LineClient(broker.lines) as dripping:
        for byte in text:
            dripping.send(bytes([byte]))
        heard = [dripping.hear() for _ in commands]
    assert [each["cmd"] for each in heard] == ["ok", "msg", "okslp", "nok"]
    assert heard[1]["msg"] == "wörk"


def test_lines_may_end_as_on_windows(broker: Broker, queue: str) -> None:
    with LineClient(broker.lines) as client:
        client.send(b'{"cmd":"SUB","qname":"%b"}\r\n' % queue.encode())
        assert client.read_line() == b'{"cmd":"oksub","qname":"%b"}' % queue.encode()


chunks = st.lists(
    st.binary(max_size=40) | st.sampled_from([b"\n", b"\r\n", b"\n\n", b'{"cmd":"FET","qname":"chance"}\n', b"{"]),
    max_size=20,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sent=chunks)
def test_any_bytes_in_any_pieces_get_one_reply_a_line(broker: Broker, sent: list[bytes]) -> None:
    with LineClient(broker.lines) as client:
        for chunk in sent:
            client.send(chunk)
        client.send(b'\n{"cmd":"SUB","qname":"the last one"}\n')
        for _ in range(b"".join(sent).count(b"\n") + 1):
            assert client.hear()["cmd"] in ("nok", "nomsg")
        assert client.hear() == {"cmd": "oksub", "qname": "the last one"}


def test_a_line_without_an_end_is_no_command(broker: Broker, queue: str) -> None:
    with LineClient(broker.lines) as client:
        client.send(json.dumps(publish(queue, "whole")).encode() + b"\n" + json.dumps(publish(queue, "cut")).encode())
        assert client.hear()["cmd"] == "ok"
        client.shut_down_sending()
        assert client.read_to_end() == b""
    with LineClient(broker.lines) as client:
        client.say(fetch(queue), fetch(queue))
        assert [client.hear().get("msg") for _ in range(2)] == ["whole", None]


def test_a_client_that_only_closes_its_sending_side_still_hears_its_replies(broker: Broker, queue: str) -> None:
    with LineClient(broker.lines) as client:
        client.say(*(publish(queue, "m") for _ in range(2000)))
        client.shut_down_sending()
        assert client.read_to_end().count(b'"cmd":"ok"') == 2000


# Limits


def test_a_line_that_never_ends_is_answered_once_and_not_kept(start_broker: StartBroker) -> None:
    broker = start_broker()
    with LineClient(broker.lines) as client, LineClient(broker.lines) as lively:
        before = broker.resident_bytes()
        for _ in range(64):
            client.send(b"x" * (1 << 20))
        assert client.hear() == {"cmd": "nok", "err": "TOO_LARGE"}
        assert lively.ask(cmd="SUB", qname="q")["cmd"] == "oksub"
        assert broker.resident_bytes() - before < 16 << 20
        client.send(b'y\n{"cmd":"SUB","qname":"q"}\n')
        assert client.hear() == {"cmd": "oksub", "qname": "q"}


def test_the_longest_line_is_taken_and_one_byte_more_is_not(broker: Broker, queue: str) -> None:
    line = json.dumps(publish(queue, "\x01" * BODY_BYTES_MAX)).encode()  # Six bytes for each.
    with LineClient(broker.lines) as client:
        client.send(line.ljust(LINE_BYTES_MAX) + b"\n")
        assert client.hear()["cmd"] == "ok"
        client.send(line.ljust(LINE_BYTES_MAX + 1) + b"\n")
        assert client.hear() == {"cmd": "nok", "err": "TOO_LARGE"}
        client.say(fetch(queue), fetch(queue))
        assert [client.hear()["cmd"] for _ in range(2)] == ["msg", "nomsg"]


def test_lines_that_are_not_complete_share_a_limit(start_broker: StartBroker) -> None:
    broker = start_broker(f"lines.buffered_bytes_max={2 * LINE_BYTES_MAX}")
    piece = b" " * (LINE_BYTES_MAX - 100)
    with LineClient(broker.lines) as first, LineClient(broker.lines) as second, LineClient(broker.lines) as third:
        for client in (first, second):
            client.send(piece)
        wait_for_metric(broker, "penstock_lines_buffered_bytes", 2 * len(piece))
        third.send(piece)
        assert third.hear() == {"cmd": "nok", "err": "UNAVAILABLE"}
        first.send(b'{"cmd":"SUB","qname":"q"}\n')
        assert first.hear()["cmd"] == "oksub"
        third.send(b'the rest\n{"cmd":"SUB","qname":"q"}\n')
        assert third.hear()["cmd"] == "oksub"


def test_one_connection_over_the_limit_is_told_and_closed(start_broker: StartBroker) -> None:
    broker = start_broker("lines.connections_max=2")
    with LineClient(broker.lines) as first, LineClient(broker.lines) as second:
        assert first.ask(cmd="SUB", qname="q")["cmd"] == second.ask(cmd="SUB", qname="q")["cmd"] == "oksub"
        with LineClient(broker.lines) as third:
            assert third.hear() == {"cmd": "nok", "err": "TOO_MANY_CONNECTIONS"}
            assert third.ended_within(30)
        assert first.ask(cmd="SUB", qname="q")["cmd"] == "oksub"


def test_with_one_command_at_a_time_the_others_wait_their_turn(start_broker: StartBroker) -> None:
    broker = start_broker("lines.commands_max=1")
    with LineClient(broker.lines) as client:
        client.say(*(publish("q", str(number)) for number in range(300)), *(fetch("q") for _ in range(300)))
        assert [client.hear()["cmd"] for _ in range(300)] == ["ok"] * 300
        assert [client.hear()["msg"] for _ in range(300)] == [str(number) for number in range(300)]


def test_a_client_that_does_not_read_is_not_answered_into_memory_without_end(start_broker: StartBroker) -> None:
    broker = start_broker("lines.unsent_bytes_max=33554432")
    broker.create_queue("big", visibility_timeout=0)
    assert broker.request("POST", "/messages/big", body=b"x" * BODY_BYTES_MAX).status == 201
    with LineClient(broker.lines, receive_bytes=4096) as deaf, LineClient(broker.lines) as lively:
        before = broker.resident_bytes()
        deaf.say(*(fetch("big") for _ in range(2000)))
        for _ in range(20):
            assert lively.ask(**fetch("big"))["cmd"] == "msg"
        assert broker.resident_bytes() - before < 100 << 20


def test_a_client_that_leaves_too_much_unread_is_disconnected_at_once(start_broker: StartBroker) -> None:
    broker = start_broker("lines.unsent_bytes_max=4194304")
    with LineClient(broker.lines, receive_bytes=4096) as deaf, LineClient(broker.lines) as lively:
        lively.say(*(publish("mixed", "small") for _ in range(300)))
        lively.say(*(publish("mixed", "x" * BODY_BYTES_MAX) for _ in range(40)))
        assert {lively.hear()["cmd"] for _ in range(340)} == {"ok"}
        deaf.say(*(fetch("mixed") for _ in range(340)))
        wait_for_metric(broker, "penstock_lines_connections", 1)
        assert lively.ask(cmd="SUB", qname="q")["cmd"] == "oksub"


def test_a_client_that_reads_slowly_gets_everything(start_broker: StartBroker) -> None:
    broker = start_broker("lines.unsent_bytes_max=33554432")
    broker.create_queue("big", visibility_timeout=0)
    assert broker.request("POST", "/messages/big", body=b"x" * BODY_BYTES_MAX).status == 201
    with LineClient(broker.lines, receive_bytes=4096) as slow:
        slow.say(*(fetch("big") for _ in range(100)))
        heard = [slow.hear() for _ in range(100)]
    assert {len(reply["msg"]) for reply in heard} == {BODY_BYTES_MAX}
    assert sorted(reply["error_count"] for reply in heard) == list(range(100))


def test_a_client_that_never_reads_loses_its_place(start_broker: StartBroker) -> None:
    broker = start_broker("lines.connections_max=2", "lines.slow_client_seconds=4")
    with LineClient(broker.lines, receive_bytes=4096) as deaf, LineClient(broker.lines) as lively:
        lively.say(*(publish("big", "x" * BODY_BYTES_MAX) for _ in range(30)))
        assert {lively.hear()["cmd"] for _ in range(30)} == {"ok"}
        deaf.say(*(fetch("big") for _ in range(30)))
        wait_for_metric(broker, "penstock_lines_connections", 1)
        assert lively.ask(cmd="SUB", qname="q")["cmd"] == "oksub"


# Time


def test_an_idle_connection_is_closed_a_sleeper_is_not(start_broker: StartBroker) -> None:
    broker = start_broker("lines.idle_seconds=4")
    with LineClient(broker.lines) as fresh, LineClient(broker.lines) as used, LineClient(broker.lines) as sleeper:
        assert used.ask(cmd="SUB", qname="q")["cmd"] == "oksub"
        assert sleeper.ask(cmd="ISLP", qname="q")["cmd"] == "okslp"
        assert fresh.ended_within(30)
        assert used.ended_within(30)
        with LineClient(broker.lines) as publisher:
            assert publisher.ask(**publish("q", "good morning"))["cmd"] == "ok"
        assert sleeper.hear() == {"cmd": "awk", "qname": "q"}
        assert sleeper.ended_within(30), "awake, it may rest no longer than others"


def test_a_client_that_drips_is_closed_though_it_is_never_silent_for_long(start_broker: StartBroker) -> None:
    broker = start_broker("lines.slow_client_seconds=1")
    with LineClient(broker.lines) as client:
        for _ in range(100):
            client.send(b"x")
            if client.ended_within(0.1):
                break
        else:
            raise AssertionError("still open after ten seconds of dripping")
        assert client.read_line() == b'{"cmd":"nok","err":"TIMEOUT"}'


def test_who_shows_no_token_in_time_is_closed(start_broker: StartBroker) -> None:
    broker = start_broker("lines.slow_client_seconds=4", "auth.tokens=opens-the-door")
    with LineClient(broker.lines) as guest, LineClient(broker.lines) as admitted:
        assert admitted.ask(cmd="AUTH", token="opens-the-door") == {"cmd": "okauth"}
        assert guest.ended_within(30)
        assert admitted.ask(cmd="SUB", qname="q")["cmd"] == "oksub"


def test_the_kernel_watches_over_sleepers(start_broker: StartBroker) -> None:
    broker = start_broker("lines.keepalive_seconds=7")
    with LineClient(broker.lines) as client:
        assert client.ask(cmd="ISLP", qname="q")["cmd"] == "okslp"
        local = f"0100007F:{broker.lines[1]:04X}"
        table = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        ours = [row for row in table if row[1] == local and row[3] == "01"]
        assert len(ours) == 1
        timer, jiffies = ours[0][5].split(":")
        assert timer == "02", "a keepalive timer runs"
        assert 0 < int(jiffies, 16) <= 7 * 100


# Lost connections


def test_what_a_lost_connection_had_fetched_comes_back(broker: Broker, queue: str) -> None:
    with LineClient(broker.lines) as survivor:
        with LineClient(broker.lines) as lost:
            lost.say(publish(queue, "work", timeout=5), fetch(queue), {"cmd": "ISLP", "qname": queue})
            assert [lost.hear()["cmd"] for _ in range(3)] == ["ok", "msg", "okslp"]
        assert survivor.ask(cmd="ISLP", qname=queue)["cmd"] == "okslp"
        assert survivor.hear() == {"cmd": "awk", "qname": queue}
        again = survivor.ask(**fetch(queue))
        assert (again["msg"], again["error_count"]) == ("work", 1)


# Start and stop


def test_an_address_in_use_is_refused_by_name(broker: Broker, tmp_path: Path) -> None:
    taken = "{}:{}".format(*broker.lines)
    code, said = refused_start(tmp_path / "data", flags=("--lines", taken))
    assert code == 3
    assert f"cannot listen on {taken}: process {broker.pid} (" in said
    assert "Stop it, or choose another address" in said


def test_sigterm_answers_what_is_under_way_and_closes_the_rest(start_broker: StartBroker) -> None:
    broker = start_broker()
    with LineClient(broker.lines) as busy, LineClient(broker.lines) as sleeper, LineClient(broker.lines) as idle:
        assert sleeper.ask(cmd="ISLP", qname="other")["cmd"] == "okslp"
        assert idle.ask(cmd="SUB", qname="other")["cmd"] == "oksub"
        busy.say(*(publish("q", str(number)) for number in range(20_000)))
        assert busy.hear()["cmd"] == "ok"
        broker.ask_to_stop()
        rest = busy.read_to_end()
        assert sleeper.ended_within(30)
        assert idle.ended_within(30)
    broker.wait_until_stopped()
    assert rest.endswith(b"\n")
    promised = [json.loads(line)["uid"] for line in rest.splitlines()]

    broker.start()

    with LineClient(broker.lines) as client:
        client.say(*(fetch("q") for _ in range(20_001)))
        found = [client.hear().get("uid") for _ in range(20_001)]
    stored = [uid for uid in found if uid]
    assert stored[1 : len(promised) + 1] == promised, "each that was answered is there, in order"


def test_sigterm_takes_no_new_connection(start_broker: StartBroker) -> None:
    broker = start_broker()
    broker.stop()
    with pytest.raises(OSError, match="refused"):
        LineClient(broker.lines)


# The manual

MANUAL = (Path(__file__).parents[2] / "docs" / "etzel.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", MANUAL, re.MULTILINE | re.DOTALL)


def test_the_session_of_the_manual_goes_as_printed(start_broker: StartBroker) -> None:
    said, printed = (block.splitlines() for block in blocks("json"))
    heard: list[str] = []
    uid = ""
    with LineClient(start_broker().lines) as client:
        for line in said:
            client.send(line.replace("UID", uid).encode() + b"\n")
            for _ in range(2 if '"PUB"' in line else 1):  # It wakes the sleeper, too.
                reply = client.hear()
                uid = reply.get("uid", uid)
                heard.append(json.dumps(reply, separators=(",", ":")).replace(uid or "UID", "UID"))
    assert heard == printed


def test_the_worker_of_the_manual_works(broker: Broker, queue: str) -> None:
    (code,) = blocks("python")
    names: dict[str, Any] = {}
    exec(code, names)
    handled: SimpleQueue[str] = SimpleQueue()

    def handle(text: str) -> None:
        handled.put(text)
        if text == "the end":
            raise EOFError

    def run() -> None:
        with pytest.raises(EOFError):
            names["work"](broker.lines, queue, handle)

    worker = threading.Thread(target=run)
    worker.start()
    with LineClient(broker.lines) as client:
        for text in ("one", "two", "the end"):
            assert client.ask(**publish(queue, text))["cmd"] == "ok"
            assert handled.get(timeout=30) == text
        worker.join(30)
        assert not worker.is_alive()
        assert client.ask(**fetch(queue))["cmd"] == "nomsg"


# Metrics


def test_connections_and_lines_are_counted(start_broker: StartBroker) -> None:
    broker = start_broker()
    with LineClient(broker.lines) as client:
        client.say(fetch("q"), fetch("q"), fetch("q"))
        assert [client.hear()["cmd"] for _ in range(3)] == ["nok"] * 3
        client.send(b"beginning")
        wait_for_metric(broker, "penstock_lines_buffered_bytes", 9)
        assert metric(broker, "penstock_lines_connections") == 1
        assert metric(broker, "penstock_lines_received_total") == 3
    wait_for_metric(broker, "penstock_lines_connections", 0)
    assert metric(broker, "penstock_lines_buffered_bytes") == 0


def metric(broker: Broker, name: str) -> float:
    found = re.search(rf"^{name} (\S+)$", broker.request("GET", "/metrics").body.decode(), re.MULTILINE)
    assert found, f"no {name}"
    return float(found[1])


def wait_for_metric(broker: Broker, name: str, value: float, seconds_max: float = SECONDS_MAX) -> None:
    wait_until(lambda: metric(broker, name) == value, f"{name} is {value}", seconds_max)


# The worker of the document, several times, and a broker that is killed


WORKERS = 4
MESSAGES = 1500
KILL_AFTER = (300, 800)


class Crew:
    """Workers and a publisher on one queue; each connects again when the broker is back."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.lock = threading.Condition()
        self.runs = 1  # Of the broker.
        self.stored: set[str] = set()
        self.worked: Counter[str] = Counter()
        self.finished: set[str] = set()  # Acknowledged by a worker,
        self.done: set[str] = set()  # and the worker was told so.
        self.returned: list[str] = []  # Seen again although they were done.
        self.sleeps = 0
        self.over = False
        self.threads = [threading.Thread(target=self.keep, args=(self.work,)) for _ in range(WORKERS)]
        self.threads.append(threading.Thread(target=self.keep, args=(self.publish,)))

    def keep(self, job: Callable[[LineClient], None]) -> None:
        run = 0
        while not self.over:
            with self.lock:
                self.lock.wait_for(lambda: self.runs > run or self.over)  # noqa: B023 - Called here, and not later.
                run = self.runs
            try:
                with LineClient(self.broker.lines) as client:
                    job(client)
                return
            except OSError:
                continue  # Killed. Wait for the next run.

    def publish(self, client: LineClient) -> None:
        names = [f"message {number}" for number in range(MESSAGES)]
        while left := [name for name in names if name not in self.stored][:20]:
            client.say(*(publish("work", name, timeout=5) for name in left))
            for name in left:
                assert client.hear()["cmd"] == "ok"
                with self.lock:
                    self.stored.add(name)
                    self.lock.notify_all()

    def work(self, client: LineClient) -> None:
        """As the document has it: ask, work, ask again; sleep when there is nothing, until woken."""
        assert client.ask(cmd="SUB", qname="work")["cmd"] == "oksub"
        while not self.over:
            reply = client.ask(cmd="FET", qname="work")
            if reply["cmd"] == "nomsg":
                with self.lock:
                    self.sleeps += 1
                assert client.ask(cmd="ISLP", qname="work")["cmd"] == "okslp"
                assert client.hear() == {"cmd": "awk", "qname": "work"}
                continue
            assert reply["cmd"] == "msg"
            self.note(reply["msg"])
            if reply["msg"] != "go home":
                with self.lock:
                    self.finished.add(reply["msg"])
                assert client.ask(cmd="ACK", qname="work", uid=reply["uid"])["cmd"] == "okack"
                with self.lock:
                    self.done.add(reply["msg"])
                    self.lock.notify_all()

    def note(self, name: str) -> None:
        with self.lock:
            self.worked[name] += 1
            if name in self.done:
                self.returned.append(name)

    def wait_until(self, many: int) -> None:
        with self.lock:
            enough = self.lock.wait_for(lambda: len(self.finished) >= many, timeout=60)
            assert enough, f"after 60 s {len(self.finished)} of {many} are finished"

    def go_home(self) -> None:
        """Wakes everyone, so that they see that it is over."""
        self.over = True
        with self.lock:
            self.lock.notify_all()
        with LineClient(self.broker.lines) as client:
            client.say(*(publish("work", "go home") for _ in range(WORKERS)))
            assert {client.hear()["cmd"] for _ in range(WORKERS)} == {"ok"}
        for thread in self.threads:
            thread.join(30)
            assert not thread.is_alive()


def test_workers_who_sleep_miss_nothing_though_the_broker_is_killed_twice(start_broker: StartBroker) -> None:
    broker = start_broker()
    crew = Crew(broker)
    for thread in crew.threads:
        thread.start()
    try:
        for many in KILL_AFTER:
            crew.wait_until(many)
            broker.kill()
            broker.start()
            with crew.lock:
                crew.runs += 1
                crew.lock.notify_all()
        crew.wait_until(MESSAGES)
    finally:
        crew.go_home()
    assert crew.worked.keys() - {"go home"} == crew.stored == crew.finished
    assert len(crew.finished - crew.done) <= WORKERS * len(KILL_AFTER), "whose reply was lost with the broker"
    assert crew.sleeps > 0
    # Only what was published again, because its ok was lost, may be seen after it was done: the last twenty of a run.
    assert len(set(crew.returned)) <= 20 * len(KILL_AFTER)
