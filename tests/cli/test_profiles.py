"""Which broker a verb talks to."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.cli.profiles import DEFAULT_URL, config_path, target
from penstock.errors import ConfigError

PROFILES = """
default = "here"
[profiles.here]
url = "http://here"
[profiles.there]
url = "http://there"
token = "key"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(PROFILES)
    return path


def test_without_anything_it_is_the_local_broker(tmp_path: Path) -> None:
    found = target({}, {}, tmp_path / "config.toml")
    assert (found.url.text, found.token.text, found.url.source) == (DEFAULT_URL, "", "default")


def test_the_default_profile_is_used_if_none_is_named(file: Path) -> None:
    assert target({}, {}, file).url.text == "http://here"


def test_the_environment_names_a_profile_and_the_flag_another(file: Path) -> None:
    assert target({}, {"PENSTOCK_PROFILE": "there"}, file).token.text == "key"
    found = target({"profile": "here"}, {"PENSTOCK_PROFILE": "there"}, file)
    assert (found.url.text, found.url.source) == ("http://here", "profile here")


def test_a_flag_comes_before_the_environment_and_that_before_the_profile(file: Path) -> None:
    environ = {"PENSTOCK_URL": "http://environment"}
    assert target({"url": "http://flag"}, environ, file).url.text == "http://flag"
    assert target({}, environ, file).url.text == "http://environment"


def test_a_token_of_a_profile_goes_with_its_url_only(file: Path) -> None:
    found = target({"url": "http://elsewhere"}, {"PENSTOCK_PROFILE": "there"}, file)
    assert found.token.text == ""


def test_an_unknown_profile_is_named_with_those_that_exist(file: Path) -> None:
    with pytest.raises(ConfigError, match=r'"nowhere" \(--profile\).*there are: here, there'):
        target({"profile": "nowhere"}, {}, file)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("what = 1", 'unknown setting "what"'),
        ("profiles = 1", "must be tables"),
        ("[profiles]\na = 1", "profile a is not a table"),
        ("[profiles.a]\nuser = 'x'", '"user" is not a setting'),
        ("[profiles.a]\nurl = 1", '"url" is not a setting with text'),
        ("[profiles", "cannot be read"),
    ],
)
def test_a_mistake_in_the_file_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=complaint):
        target({}, {}, path)


def test_the_file_is_in_the_configuration_directory_of_the_user() -> None:
    assert config_path({"XDG_CONFIG_HOME": "/etc/mine"}) == Path("/etc/mine/penstock/config.toml")
    assert config_path({"HOME": "/home/me"}) == Path("/home/me/.config/penstock/config.toml")
    assert config_path({"HOME": "/home/me", "XDG_CONFIG_HOME": "relative"}).is_relative_to("/home/me")
