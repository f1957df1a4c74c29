"""Etzel without a socket: frames in, frames out, on a real loop with a disk and a clock that are played.

What the protocol says is in the transcripts; here is what they cannot show: any bytes at all, and a disk that fails.
"""

from __future__ import annotations

import json
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker.writer.loop import Loop
from penstock.dialects.etzel.conversation import Etzel, EtzelConversation
from penstock.engine.engine import Engine
from penstock.ids import ID_KEY_BYTES, MessageIds
from penstock.limits import BODY_BYTES_MAX, CONNECTION_QUEUES_MAX, SECOND_NS
from penstock.model.commands import CreateQueue
from penstock.model.settings import QueueSettings
from penstock.shells.peer import LoopPeer
from tests.simulation.scheduler import ProcessScheduler, VirtualTime
from tests.support.faulty import Faults, FaultyLog

START_NS = 1_700_000_000 * SECOND_NS
SETTLED_SECONDS = 0.1  # The disk is done by then.
IDS = MessageIds(b"k" * ID_KEY_BYTES)

Frame = dict[str, Any]


class Talk(LoopPeer):
    """One client: what it hears is kept."""

    def __init__(self, loop: Loop, etzel: Etzel) -> None:
        super().__init__(loop)
        self.frames: list[bytes] = []
        self.conversation: EtzelConversation = etzel.converse(self)
        self.conversation.opened()

    def send(self, frame: bytes, *, binary: bool = False) -> None:
        assert not binary
        assert b"\n" not in frame, "a frame must fit on a line"
        self.frames.append(frame)

    def close(self, reason: str) -> None:
        raise AssertionError(f"closed: {reason}")

    def say(self, *commands: Frame, **command: Any) -> None:
        """All that is said together comes together."""
        for each in commands or (command,):
            self.conversation.received(json.dumps(each).encode())
        self.conversation.settle()

    def heard(self) -> list[Frame]:
        frames, self.frames = self.frames, []
        return [json.loads(frame) for frame in frames]


class Rig:
    """A loop in virtual time, and those who talk to it."""

    def __init__(self, seed: int = 0) -> None:
        self.random = Random(seed)
        self.time = VirtualTime(self.random, START_NS)
        self.scheduler = ProcessScheduler(self.time, self.random)
        self.disk: list[bytes] = []
        self.loop = Loop(Engine(), self.a_log(), self.time, self.scheduler)
        self.etzel = Etzel(IDS, QueueSettings())

    def a_log(self) -> FaultyLog:
        log = FaultyLog(self.scheduler.disk_after, self.random, durable=self.disk)
        self.log = log
        return log

    def talk(self) -> Talk:
        return Talk(self.loop, self.etzel)

    def settle(self, seconds: float = SETTLED_SECONDS) -> None:
        """Let this much time pass."""
        over: list[bool] = []
        self.time.after(int(seconds * SECOND_NS), lambda: over.append(True))
        while not over:
            assert self.time.step()

    def revive(self) -> None:
        """The log again, as the disk has it."""
        self.log.abandon()
        engine, log = Engine(), self.a_log()
        for event, position in log.recover().events:
            engine.evolve(event, position)
        self.loop.revive(engine, log)


def kinds(frames: list[Frame]) -> list[str]:
    return [frame["cmd"] for frame in frames]


# Any input at all


any_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
command_names = st.sampled_from(["SUB", "PUB", "FET", "ACK", "DEL", "ISLP", "AUTH"])
keys = st.sampled_from(["qname", "message", "msg", "timeout", "delay", "expires", "uid", "token"])
near_commands = st.builds(
    lambda name, fields: msgspec.json.encode({"cmd": name} | fields),
    command_names | any_json,
    st.dictionaries(keys, any_json | st.sampled_from(["q", 5, 60, 0]), max_size=6),
)
good_commands = st.builds(
    lambda name, queue, more: msgspec.json.encode({"cmd": name, "qname": queue, "message": "m", "uid": "u"} | more),
    command_names.filter(lambda name: name != "AUTH"),
    st.sampled_from(["a", "b"]),
    st.fixed_dictionaries({}, optional={"delay": st.integers(0, 3), "timeout": st.integers(5, 9)}),
)
frames = st.binary(max_size=60) | near_commands | good_commands | near_commands.map(lambda frame: frame[:-1])


@settings(max_examples=300)
@given(st.lists(frames, max_size=12), st.randoms(use_true_random=False))
def test_every_frame_gets_one_reply_and_a_wake_up_only_who_sleeps(sent: list[bytes], chance: Random) -> None:
    rig = Rig()
    client = rig.talk()
    for each in sent:
        client.conversation.received(each)
        if chance.random() < 0.3:
            client.conversation.settle()
        if chance.random() < 0.3:
            rig.settle()
    client.conversation.settle()
    rig.settle(10)
    heard = client.heard()
    replies = [frame for frame in heard if frame["cmd"] != "awk"]
    assert len(replies) == len(sent)
    assert client.conversation.under_way == 0
    assert len(heard) - len(replies) <= kinds(replies).count("okslp")
    for position, frame in enumerate(heard):
        if frame["cmd"] == "awk":
            assert {"cmd": "okslp", "qname": frame["qname"]} in heard[:position]


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=200))
@settings(max_examples=100)
def test_any_text_comes_back_as_it_was_sent(text: str) -> None:
    rig = Rig()
    client = rig.talk()
    client.say(cmd="PUB", qname="q", message=text)
    client.say(cmd="FET", qname="q")
    rig.settle()
    published, fetched = client.heard()
    assert fetched == {"cmd": "msg", "qname": "q", "uid": published["uid"], "error_count": 0, "msg": text}


@pytest.mark.parametrize(
    ("frame", "error"),
    [
        (b'{"cmd":"FET","qname":"\\ud800"}', "BAD_JSON"),
        (b'{"cmd":"FET","qname":"q","more":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "BAD_JSON"),
        (b"[" * 100_000, "BAD_JSON"),
        (b'{"cmd":"PUB","qname":"q","message":"m","delay":1e999}', "BAD_FIELD"),
        (b'{"cmd":"PUB","qname":"q","message":"m","delay":NaN}', "BAD_JSON"),
        (b'{"cmd":"PUB","qname":"q","message":"' + b"\\u00e9" * (BODY_BYTES_MAX // 2 + 1) + b'"}', "TOO_LARGE"),
    ],
    ids=[
        "half a surrogate pair",
        "deep",
        "deeper",
        "too large a number",
        "no number",
        "large once it is written out",
    ],
)
def test_what_is_wrong_is_named(frame: bytes, error: str) -> None:
    rig = Rig()
    client = rig.talk()
    client.conversation.received(frame)
    client.conversation.settle()
    rig.settle()
    (reply,) = client.heard()
    assert (reply["cmd"], reply["err"]) == ("nok", error)


def test_a_binary_frame_is_not_json() -> None:
    client = Rig().talk()
    for frame in (b'{"cmd":"SUB","qname":"q"}', b"{}", b'{"cmd":"AUTH","token":"t"}'):
        client.conversation.received(frame, binary=True)
        assert client.heard() == [{"cmd": "nok", "err": "BAD_JSON"}]


def test_a_client_subscribes_and_sleeps_for_a_bounded_number_of_queues() -> None:
    rig = Rig()
    client = rig.talk()
    for command in ("SUB", "ISLP"):
        for number in range(CONNECTION_QUEUES_MAX):
            client.say(cmd=command, qname=str(number))
        assert all(frame["cmd"].startswith("ok") for frame in client.heard())
        client.say(cmd=command, qname="one more")
        assert client.heard() == [{"cmd": "nok", "err": "TOO_MANY"}]
        client.say(cmd=command, qname="0")
        assert kinds(client.heard()) == [{"SUB": "oksub", "ISLP": "okslp"}[command]]


# Order


def test_sleep_is_allowed_before_the_wake_up_also_while_the_disk_is_busy() -> None:
    rig = Rig()
    client, other = rig.talk(), rig.talk()
    other.say(cmd="PUB", qname="q", message="there")
    rig.settle()
    client.say(cmd="PUB", qname="elsewhere", message="takes its time")
    client.say(cmd="ISLP", qname="q")
    assert client.heard() == []
    rig.settle()
    assert kinds(client.heard()) == ["ok", "okslp", "awk"]


def test_messages_that_come_together_keep_their_order_whatever_else_they_ask_for() -> None:
    rig = Rig()
    client = rig.talk()
    wishes: list[Frame] = [{}, {"timeout": 9}, {"timeout": 9}, {}, {"expires": 50}, {"delay": 0}] * 7
    client.say(*({"cmd": "PUB", "qname": "q", "msg": str(n)} | wish for n, wish in enumerate(wishes)))
    client.say(*[{"cmd": "FET", "qname": "q"}] * len(wishes))
    rig.settle()
    heard = client.heard()
    published, fetched = heard[: len(wishes)], heard[len(wishes) :]
    assert [frame["uid"] for frame in published] == [frame["uid"] for frame in fetched]
    assert [frame["msg"] for frame in fetched] == [str(n) for n in range(len(wishes))]


def test_fetches_that_come_together_share_what_there_is() -> None:
    rig = Rig()
    client = rig.talk()
    client.say(*({"cmd": "PUB", "qname": "q", "msg": "x" * BODY_BYTES_MAX} for _ in range(10)))
    client.say(*[{"cmd": "FET", "qname": "q"}] * 12, {"cmd": "SUB", "qname": "q"})
    rig.settle(1)
    assert kinds(client.heard()) == ["ok"] * 10 + ["msg"] * 10 + ["nomsg"] * 2 + ["oksub"]


def test_nothing_is_fetched_for_a_client_that_is_gone() -> None:
    rig = Rig()
    client, other = rig.talk(), rig.talk()
    client.say(*({"cmd": "PUB", "qname": "q", "msg": "x" * BODY_BYTES_MAX} for _ in range(10)))
    rig.settle()
    client.say(*[{"cmd": "FET", "qname": "q"}] * 10)
    client.conversation.closed()
    rig.settle(1)
    other.say(*[{"cmd": "FET", "qname": "q"}] * 10)
    rig.settle(1)
    assert kinds(other.heard()).count("msg") == 6, "four of them went the way of the first client"


def test_each_acknowledgement_is_answered_for_itself() -> None:
    rig = Rig()
    client = rig.talk()
    client.say(*({"cmd": "PUB", "qname": "q", "msg": str(n)} for n in range(20)))
    rig.settle()
    uids = [frame["uid"] for frame in client.heard()]
    acknowledged = [*uids[:15], "unknown", *uids[10:]]
    client.say(*({"cmd": "DEL", "qname": f"q{n}", "uid": uid} for n, uid in enumerate(acknowledged)))
    rig.settle()
    assert client.heard() == [{"cmd": "okack", "qname": f"q{n}", "uid": uid} for n, uid in enumerate(acknowledged)]
    client.say(cmd="FET", qname="q")
    rig.settle()
    assert kinds(client.heard()) == ["nomsg"]


def test_a_closed_conversation_is_not_woken() -> None:
    rig = Rig()
    client, other = rig.talk(), rig.talk()
    client.say(cmd="ISLP", qname="q")
    client.say(cmd="PUB", qname="p", message="not answered any more")
    client.say(cmd="ISLP", qname="p")
    client.conversation.closed()
    other.say(cmd="PUB", qname="q", message="m")
    rig.settle()
    assert "awk" not in kinds(client.heard())
    assert not client.conversation.asleep


# A disk that fails


def test_when_the_log_fails_every_command_is_told_and_sleepers_sleep_on() -> None:
    rig = Rig()
    client, sleeper = rig.talk(), rig.talk()
    client.say(cmd="PUB", qname="q", message="kept")
    rig.settle()
    kept = client.heard()[0]["uid"]
    sleeper.say(cmd="ISLP", qname="p")
    rig.log.faults = Faults(sync_fails=1.0)
    client.say(cmd="PUB", qname="p", message="lost")
    client.say(cmd="FET", qname="q")
    client.say(cmd="ACK", qname="q", uid=kept)
    rig.settle()
    other = rig.talk()
    other.say(cmd="PUB", qname="p", message="refused at once")
    other.say(cmd="SUB", qname="p")
    assert kinds(other.heard()) == ["nok", "oksub"]
    assert client.heard() == []  # It is not known yet what is on the disk.
    assert sleeper.heard() == [{"cmd": "okslp", "qname": "p"}]

    rig.revive()

    refused = client.heard()
    assert [(frame["cmd"], frame["err"]) for frame in refused] == [("nok", "UNAVAILABLE")] * 3
    assert all(frame["detail"] for frame in refused)
    client.say(cmd="FET", qname="q")
    client.say(cmd="PUB", qname="p", message="again")
    rig.settle()
    fetched, published = client.heard()
    assert (fetched["uid"], fetched["msg"], published["cmd"]) == (kept, "kept", "ok")
    assert sleeper.heard() == [{"cmd": "awk", "qname": "p"}]


def test_who_falls_asleep_while_the_log_has_failed_is_woken_by_what_it_still_holds() -> None:
    rig = Rig()
    client, sleeper = rig.talk(), rig.talk()
    client.say(cmd="PUB", qname="q", message="kept")
    rig.settle()
    rig.log.faults = Faults(write_fails=1.0)
    client.say(cmd="FET", qname="q")
    rig.settle()
    assert kinds(client.heard()) == ["ok"]
    sleeper.say(cmd="ISLP", qname="q")
    assert sleeper.heard() == [{"cmd": "okslp", "qname": "q"}]
    rig.revive()
    assert kinds(client.heard()) == ["nok"]
    assert sleeper.heard() == [{"cmd": "awk", "qname": "q"}]


def test_what_is_not_known_for_long_is_said_to_be_unknown() -> None:
    rig = Rig()
    client = rig.talk()
    rig.log.faults = Faults(sync_fails=1.0)
    client.say(cmd="PUB", qname="q", message="somewhere")
    rig.settle(11)
    (frame,) = client.heard()
    assert (frame["cmd"], frame["err"]) == ("nok", "OUTCOME_UNKNOWN")


# Leases


def test_a_message_of_this_dialect_has_its_own_time_whatever_the_queue_says() -> None:
    rig = Rig()
    client = rig.talk()
    rig.loop.submit(CreateQueue("q", QueueSettings(visibility_ns=1 * SECOND_NS)), lambda _: None)
    client.say(cmd="PUB", qname="q", message="usual")
    client.say(cmd="PUB", qname="q", message="own", timeout=300.5)
    client.say(cmd="FET", qname="q")
    client.say(cmd="FET", qname="q")
    client.say(cmd="ISLP", qname="q")
    rig.settle(59)
    assert kinds(client.heard()) == ["ok", "ok", "msg", "msg", "okslp"]
    rig.settle(2)
    assert kinds(client.heard()) == ["awk"]
    client.say(cmd="FET", qname="q")
    client.say(cmd="FET", qname="q")
    rig.settle()
    again, nothing = client.heard()
    assert (again["msg"], again["error_count"], nothing["cmd"]) == ("usual", 1, "nomsg")
    client.say(cmd="ACK", qname="q", uid=again["uid"])
    client.say(cmd="ISLP", qname="q")
    rig.settle(238)
    assert kinds(client.heard()) == ["okack", "okslp"]
    rig.settle(3)
    assert kinds(client.heard()) == ["awk"]


def test_a_delay_of_a_year_ends_after_a_year() -> None:
    rig = Rig()
    client = rig.talk()
    year = 365 * 86_400
    client.say(cmd="PUB", qname="q", message="happy new year", delay=year)
    client.say(cmd="ISLP", qname="q")
    rig.settle(year - 1)
    assert kinds(client.heard()) == ["ok", "okslp"]
    rig.settle(2)
    assert kinds(client.heard()) == ["awk"]
