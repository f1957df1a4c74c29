"""Connections leave the log enough file descriptors."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from penstock.config.config import Config, HttpConfig, LinesConfig, PushConfig
from penstock.errors import ConfigError
from penstock.limits import BACKLOG_MAX, DESCRIPTORS_MIN
from penstock.server.open_files import plan
from tests.support.broker import Broker


def connections(config: Config) -> tuple[int, int, int]:
    return config.http.connections_max, config.lines.connections_max, config.push.connections_max


def test_limits_that_fit_stay_as_they_are() -> None:
    config = Config()
    assert plan(config, 1 << 20) == (config, BACKLOG_MAX)


@pytest.mark.parametrize("descriptors", [DESCRIPTORS_MIN, 256, 1024, 4096, 20_000])
def test_connections_and_a_crowd_that_is_refused_leave_some_descriptors(descriptors: int) -> None:
    config, backlog = plan(Config(), descriptors)
    http, lines, push = connections(config)
    assert min(http, lines, push, backlog) > 0
    assert http + lines + push + 2 * backlog <= descriptors - min(64, descriptors // 8)


def test_what_is_left_is_shared_as_the_settings_are() -> None:
    wanted = Config(
        http=HttpConfig(connections_max=3000),
        lines=LinesConfig(connections_max=1000),
        push=PushConfig(connections_max=0),
    )
    http, lines, push = connections(plan(wanted, 1024).config)
    assert (http, lines, push) == (576, 192, 0)


def test_with_too_few_a_broker_does_not_start() -> None:
    with pytest.raises(ConfigError, match=r"open files is 64, and a broker needs at least 128: raise it"):
        plan(Config(), 64)


def test_the_log_goes_on_however_many_connect(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "data", "log.segment_bytes=65536")
    broker.command = ["prlimit", "--nofile=300:300", *broker.command]
    broker.spawn()
    try:
        limited = broker.wait_until_logged("connections_limited")
        broker.wait_until_listening()
        broker.create_queue("q")
        with contextlib.ExitStack() as crowd, broker.connect() as honest:
            for _ in range(400):
                crowd.enter_context(broker.connect())
            for _ in range(20):
                assert honest.request("POST", "/messages/q", body=b"x" * 30_000).status == 201
            assert limited["http"] < 150
        assert len(list((tmp_path / "data").rglob("*"))) > 5
    finally:
        broker.stop()
