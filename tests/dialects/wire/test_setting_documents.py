"""Settings as clients write them, made from their declarations."""

from __future__ import annotations

import msgspec
import pytest

from penstock.dialects.wire.setting_documents import document_type, settings_in
from penstock.errors import ProtocolError
from penstock.limits import NEVER_NS, SECOND_NS
from penstock.model.settings import Push, QueueSettings, RedrivePolicy, as_written, settings_of
from penstock.renamed import SETTINGS, with_old_names

Document = document_type("Document", QueueSettings)


def settings_from(body: bytes) -> QueueSettings:
    return QueueSettings(**settings_in(msgspec.json.decode(body, type=Document), QueueSettings))


def test_every_setting_says_how_it_is_written() -> None:
    for kind in (QueueSettings, RedrivePolicy, Push):
        assert settings_of(kind).keys() == set(kind.__struct_fields__)
        assert len({setting.name for setting in settings_of(kind).values()}) == len(kind.__struct_fields__)


def test_what_is_written_is_read_back() -> None:
    push = Push("http://host/", timeout_ns=SECOND_NS // 2)
    policy = RedrivePolicy(3, "dead")
    settings = QueueSettings(redrive_policy=policy, retention_ns=90 * SECOND_NS, topics=("a",), push=push)
    again = settings_from(msgspec.json.encode(as_written(settings)))
    assert msgspec.structs.replace(again, topics=tuple(again.topics)) == settings


def test_what_is_left_out_has_its_default() -> None:
    assert settings_from(b"{}") == QueueSettings()


def test_no_end_is_null_and_the_shortest_time_is_not_none() -> None:
    assert as_written(QueueSettings())["retention_timeout"] is None
    assert settings_from(b'{"retention_timeout": null}').retention_ns == NEVER_NS
    assert settings_from(b'{"retention_timeout": 1e-12}').retention_ns == 1


def test_no_limit_is_null_and_a_setting_has_its_old_name_too() -> None:
    assert as_written(QueueSettings())["max_attempts"] is None
    for body in (b'{"max_attempts": null}', b'{"retries": 0}', b'{"max_attempts": null, "retries": 0}'):
        assert settings_from(body) == QueueSettings()
    settings = QueueSettings(retries=3, visibility_ns=SECOND_NS)
    shown = with_old_names(SETTINGS, as_written(settings))
    assert [shown[name] for name in ("max_attempts", "retries", "lease", "visibility_timeout")] == [3, 3, 1, 1]
    assert settings_from(msgspec.json.encode({name: shown[name] for name in ("retries", "lease")})) == settings
    with pytest.raises(ProtocolError, match="retries is the old name of max_attempts, and they differ"):
        settings_from(b'{"max_attempts": 3, "retries": 2}')


@pytest.mark.parametrize(
    "body",
    [
        b'{"retries": -1}',
        b'{"max_attempts": 0}',
        b'{"colour": 1}',
        b'{"redrive_policy": {"max_receives": 0, "dead_letter_queue": "d"}}',
        b'{"redrive_policy": {"max_receives": 1}}',
        b'{"push": {"url": "http://host/", "colour": 1}}',
    ],
)
def test_bounds_and_unknown_names_are_refused(body: bytes) -> None:
    with pytest.raises(msgspec.ValidationError):
        settings_from(body)


def test_a_setting_may_be_required_and_have_other_bounds() -> None:
    kind = document_type("Narrow", QueueSettings, ("retries", "keep"), required=("keep",), max_attempts=bool)
    assert msgspec.json.decode(b'{"keep": "all", "max_attempts": true}', type=kind).max_attempts is True
    with pytest.raises(msgspec.ValidationError, match="keep"):
        msgspec.json.decode(b"{}", type=kind)
