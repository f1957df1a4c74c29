"""Where a setting comes from, which one wins, and how a wrong one is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from penstock.config.config import Address, Config, parse_address
from penstock.errors import ConfigError
from penstock.limits import REQUEST_BODY_BYTES_MAX, REQUEST_HEADERS_BYTES_MAX
from penstock.renamed import DeprecatedName
from penstock.server.settings import SETTINGS, load
from tests.support.documented import settings_table


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No penstock.toml lies about unless a test puts one there."""
    monkeypatch.chdir(tmp_path)


def from_file(text: str, path: Path = Path("other.toml")) -> Config:
    path.write_text(text)
    return load(path, {}, [], {})


def from_set(*flags: str) -> Config:
    return load(None, {}, flags, {})


def from_environment(**environ: str) -> Config:
    return load(None, environ, [], {})


# Defaults and precedence


def test_the_parts_of_all_shards_are_the_size_of_the_event_log() -> None:
    for size, shards in ((10 << 30, 1), (10 << 30, 8), (1_000_003, 7), (0, 3)):
        log = replace(Config().log, retention_bytes=size)
        parts = [log.of_shard(shard, shards).retention_bytes for shard in range(shards)]
        assert sum(parts) == size
        assert max(parts) - min(parts) <= 1


def test_the_defaults() -> None:
    config = load(None, {}, [], {})
    assert config == Config()
    assert str(config.data) == "data"
    assert config.stop_seconds == 30
    http = config.http
    assert (str(http.address), http.connections_max) == ("127.0.0.1:7843", 10_000)
    assert (http.idle_seconds, http.slow_client_seconds) == (75, 30)
    assert (http.header_bytes_max, http.body_bytes_max) == (REQUEST_HEADERS_BYTES_MAX, REQUEST_BODY_BYTES_MAX)
    assert http.buffered_bytes_max == 256 << 20
    lines = config.lines
    assert (str(lines.address), lines.connections_max, lines.commands_max) == ("127.0.0.1:7844", 10_000, 512)
    assert (lines.line_bytes_max, lines.buffered_bytes_max, lines.unsent_bytes_max) == (8 << 20, 256 << 20, 64 << 20)
    assert (lines.idle_seconds, lines.slow_client_seconds, lines.keepalive_seconds) == (3600, 30, 60)
    assert (config.log.segment_bytes, config.log.snapshot_bytes) == (16 << 20, 128 << 20)
    assert (config.log.retention_seconds, config.log.retention_bytes) == (7 * 24 * 3600, 10 << 30)
    assert (config.logging.level, config.logging.format) == ("info", "auto")
    assert config.mqs.oversize == "cut"
    assert (config.nq.empty_status, config.nq.retention_seconds) == (404, 7 * 24 * 3600)
    assert (config.ws.origins, config.ws.ping_seconds) == ((), 30)
    glovebox = config.glovebox
    assert (glovebox.create_queues, glovebox.followed_max) == (True, 10_000)
    assert (glovebox.sessions_max, glovebox.session_seconds) == (1000, 300)
    assert (glovebox.session_replies_max, glovebox.session_bytes_max) == (10_000, 8 << 20)
    push = config.push
    assert (push.private_addresses, push.connections_max) == ("refuse", 1024)
    assert (push.retry_seconds, push.retry_seconds_max) == (1, 300)
    assert (push.circuit_failures, push.circuit_seconds_max) == (5, 60)
    assert config.auth.tokens == ()


def test_each_source_overrides_the_one_before_it(tmp_path: Path) -> None:
    file = tmp_path / "named.toml"
    names = ["connections_max", "header_bytes_max", "idle_seconds", "slow_client_seconds"]
    file.write_text("[http]\n" + "\n".join(f"{name} = 2001" for name in names))
    environ = {f"PENSTOCK_HTTP_{name.upper()}": "2002" for name in names[1:]}
    flags = [f"http.{name}=2003" for name in names[2:]]
    http = load(file, environ, flags, {"http.slow_client_seconds": "2004"}).http
    assert [getattr(http, name) for name in names] == [2001, 2002, 2003, 2004]


def test_the_last_set_of_a_key_wins() -> None:
    assert from_set("stop_seconds=1", "stop_seconds=2").stop_seconds == 2


def test_every_key_can_be_set_in_every_source(tmp_path: Path) -> None:
    values = {
        "data": "elsewhere",
        "store": "postgresql://me@database/penstock",
        "http.address": "[::1]:1",
        "lines.address": "localhost:2",
        "logging.level": "debug",
        "logging.format": "text",
        "mqs.oversize": "reject",
        "glovebox.errors": "origin",
        "ws.origins": "https://example.org",
        "http.origins": "https://example.org",
        "http.hosts": "broker.lan",
        "push.private_addresses": "allow",
        "topics.dead_letter_queue": "failed",
        "auth.tokens": "secret",
        "auth.jwt_keys": "keys.json",
        "auth.jwt_issuer": "https://provider.example",
        "auth.jwt_audience": "penstock",
        "auth.jwt_scopes_claim": "scope",
        "tls.certificate": "broker.pem",
        "tls.key": "broker.key",
        "tls.client_ca": "clients.pem",
        "lake.directory": "lake",
        "cluster.advertise": "a.example:7845",
        "cluster.listen": "[::]:7845",
        "cluster.ca": "brokers.pem",
    }
    numbers = {
        "mqs.delete_status": 200,
        "nq.empty_status": 204,
        "log.segment_bytes": 65536,
        "http.body_bytes_max": 2 << 20,
        "http.buffered_bytes_max": 4 << 20,
        "staging.bytes_max": 4 << 20,
        "unread_bytes_max": 32 << 20,
    }
    switches = {"glovebox.create_queues": "false", "topics.detect_unchanged": "false", "tls.client_required": "true"}
    switches |= {"console.enabled": "false", "console.read_only": "true"}
    switches["audit.enabled"], numbers["audit.records_max"] = "false", 1000
    needed = {"http.buffered_bytes_max": ["http.body_bytes_max=2097152"]}
    pair = ["tls.certificate=x", "tls.key=x"]
    needed |= {"tls.certificate": pair[1:], "tls.key": pair[:1], "tls.client_ca": pair}
    needed |= {"tls.client_required": [*pair, "tls.client_ca=x"]}
    store = "store=postgresql://me@database/penstock"
    needed |= {"cluster.advertise": [store], "cluster.listen": [store, "cluster.advertise=a.example:1"]}
    needed |= {"cluster.ca": [store, "cluster.advertise=a.example:1", *pair]}
    jwt = {f"auth.jwt_{name}": f"auth.jwt_{name}=x" for name in ("keys", "issuer", "audience")}
    needed |= {key: [setting for other, setting in jwt.items() if other != key] for key in jwt}
    numbers |= {f"lines.{name}_bytes_max": 4 << 20 for name in ("line", "buffered", "unsent")}
    for key, setting in SETTINGS.items():
        number = numbers.get(key, 70_000 if key.endswith(("bytes", "bytes_max")) else 7)
        text = (values | switches).get(key, str(number))
        toml = '["secret"]' if key == "auth.tokens" else f'"{text}"' if key in values else text
        others = needed.get(key, [])
        in_file = tmp_path / "one.toml"
        in_file.write_text(f"{key} = {toml}\n")
        loaded = [
            load(in_file, {}, others, {}),
            load(None, {setting.variable: text}, others, {}),
            load(None, {}, [*others, f"{key}={text}"], {}),
            load(None, {}, others, {key: text}),
        ]
        values_set = [replace(config, sources={}) for config in loaded]
        assert all(each == values_set[0] for each in values_set), key
        bare = load(None, {}, [each for each in others if not each.startswith(("tls.", "auth."))], {})
        assert values_set[0] != replace(bare, sources={}), key


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("", ()),
        ("*", ("*",)),
        ("Broker.LAN, 10.0.0.1", ("broker.lan", "10.0.0.1")),
        ("2001:db8::1", ("2001:db8::1",)),
    ],
)
def test_hosts_are_names_and_addresses(given: str, expected: tuple[str, ...]) -> None:
    assert from_set(f"http.hosts={given}").http.hosts == expected


@pytest.mark.parametrize("given", ["broker:7843", "http://broker", "*.lan", "a b", "[::1]", "::1::", ","])
def test_a_host_with_anything_else_is_refused(given: str) -> None:
    with pytest.raises(ConfigError, match=r"http\.hosts = .*expected names or addresses without a port"):
        from_set(f"http.hosts={given}")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("https://example.org", ("https://example.org",)),
        ("http://localhost:3000, https://example.org", ("http://localhost:3000", "https://example.org")),
        ("*", ("*",)),
        ("null", ("null",)),
        ("", ()),
    ],
)
def test_origins_are_read_as_browsers_send_them(given: str, expected: tuple[str, ...]) -> None:
    assert from_set(f"ws.origins={given}").ws.origins == expected


@pytest.mark.parametrize("given", ["example.org", "https://", "https://example.org/path", "https://a b", "**", ","])
def test_what_no_browser_sends_as_an_origin_is_refused(given: str) -> None:
    with pytest.raises(ConfigError, match=r"ws\.origins = .*expected origins"):
        from_set(f"ws.origins={given}")


@pytest.mark.parametrize(("given", "expected"), [("true", True), ("false", False), ("1", True), ("0", False)])
def test_a_switch_is_on_or_off(given: str, expected: bool) -> None:
    assert from_set(f"glovebox.create_queues={given}").glovebox.create_queues is expected
    with pytest.raises(ConfigError, match="expected true or false"):
        from_set("glovebox.create_queues=perhaps")


# The file


def test_the_file_of_this_directory_is_read_if_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text('data = "/srv/queue"\n[http]\nidle_seconds = 1.5\n[lines]\n')
    config = load(None, {}, [], {})
    assert (config.data, config.http.idle_seconds) == (Path("/srv/queue"), 1.5)
    (tmp_path / "named.toml").write_text("stop_seconds = 3\n")
    named = load(tmp_path / "named.toml", {}, [], {})
    assert (named.data, named.stop_seconds) == (Path("data"), 3)


def test_a_named_file_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"gone\.toml: cannot be read: .*No such file"):
        load(Path("gone.toml"), {}, [], {})


@pytest.mark.parametrize("content", [b"data = ", b"\xff\xfe", b"[http]\n[http]\n"])
def test_a_file_that_is_not_toml_is_refused(content: bytes) -> None:
    Path("bad.toml").write_bytes(content)
    with pytest.raises(ConfigError, match=r"bad\.toml: cannot be read: "):
        load(Path("bad.toml"), {}, [], {})


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("http = 3", '"http"'),
        ("[http.idle_seconds]\nx = 1", "http.idle_seconds"),
        ("[nothing]", '"nothing"'),
        ("[nothing]\nhere = 1", '"nothing.here"'),
        ("[http]\nidle = 1", '"http.idle"'),
        ("[http.deeper]\nidle = 1", '"http.deeper"'),
        ('http.idle_seconds = "soon"', "http.idle_seconds = 'soon'"),
        ("http.connections_max = true", "http.connections_max = 'True'"),
        ("http.connections_max = 1.5", "http.connections_max = '1.5'"),
        ("http.idle_seconds = nan", "http.idle_seconds = 'nan'"),
        ("data = 1", "data = '1'"),
        ('data = "a\\u0000b"', "data = "),
        ("http.address = 7843", "http.address = '7843'"),
        ("mqs.oversize = 2026-01-01", "mqs.oversize = '2026-01-01'"),
    ],
)
def test_the_file_is_refused_by_the_key_that_is_wrong(text: str, named: str) -> None:
    with pytest.raises(ConfigError, match=rf"^other\.toml: .*{re.escape(named)}"):
        from_file(text)


# The environment


def test_underscores_in_a_key_are_no_trouble_in_its_variable() -> None:
    config = from_environment(PENSTOCK_LOG_RETENTION_SECONDS="60", PENSTOCK_STOP_SECONDS="0", PATH="/bin")
    assert (config.log.retention_seconds, config.stop_seconds) == (60, 0)
    variables = [setting.variable for setting in SETTINGS.values()]
    assert len(set(variables)) == len(variables)


def test_the_variables_that_kubernetes_puts_beside_a_service_are_not_ours() -> None:
    service = {
        "PENSTOCK_SERVICE_HOST": "10.0.0.1",
        "PENSTOCK_SERVICE_PORT": "7843",
        "PENSTOCK_SERVICE_PORT_HTTP": "7843",
        "PENSTOCK_PORT": "tcp://10.0.0.1:7843",
        "PENSTOCK_PORT_7843_TCP": "tcp://10.0.0.1:7843",
        "PENSTOCK_PORT_7843_TCP_ADDR": "10.0.0.1",
        "PENSTOCK_LINES_SERVICE_HOST": "10.0.0.2",
        "PENSTOCK_LINES_PORT": "tcp://10.0.0.2:7844",
    }
    assert load(None, service, [], {}) == Config()
    with pytest.raises(ConfigError, match="PENSTOCK_HTTP_PORT"):
        from_environment(PENSTOCK_HTTP_PORT="80")


# Unknown keys


def test_an_unknown_key_is_refused_with_its_source_and_the_nearest_one() -> None:
    with pytest.raises(
        ConfigError, match=r'^--set: unknown setting "http\.idle"; did you mean "http\.idle_seconds"\?$'
    ):
        from_set("http.idle=1")
    with pytest.raises(ConfigError, match=r'^environment: .*"PENSTOCK_MQS_OVERSIZED".*"PENSTOCK_MQS_OVERSIZE"\?$'):
        from_environment(PENSTOCK_MQS_OVERSIZED="cut")
    with pytest.raises(
        ConfigError, match=r'^other\.toml: .*"log\.segment_byte"; did you mean "log\.segment_bytes"\?$'
    ):
        from_file("[log]\nsegment_byte = 1")
    with pytest.raises(ConfigError, match=r'^command line: .*"dota"; did you mean "data"\?$'):
        load(None, {}, [], {"dota": "x"})


def test_an_unknown_key_that_is_like_none_is_answered_with_all_there_are() -> None:
    with pytest.raises(ConfigError, match='"quux"') as refused:
        from_set("quux=1")
    assert all(key in str(refused.value) for key in SETTINGS)


@pytest.mark.parametrize("flag", ["mqs.oversize", "", "mqs.oversize:reject"])
def test_a_setting_without_a_value_is_refused(flag: str) -> None:
    with pytest.raises(ConfigError, match=rf'^--set: "{flag.partition(":")[0]}" has no value; expected key=value$'):
        from_set(flag)


# Values


@pytest.mark.parametrize(
    ("flag", "expected"),
    [
        ("http.connections_max=0", "a whole number from 1 to 1000000"),
        ("http.connections_max=1000001", "a whole number from 1 to 1000000"),
        ("http.connections_max=many", "a whole number from 1 to 1000000"),
        ("http.connections_max=", "a whole number from 1 to 1000000"),
        ("http.idle_seconds=0", "a number above 0, up to 86400"),
        ("http.idle_seconds=inf", "a number above 0, up to 86400"),
        ("http.body_bytes_max=1000", "a whole number from 1064960 to 67108864"),
        ("log.segment_bytes=65535", "a whole number from 65536 to 1073741824"),
        ("log.segment_bytes=1073741825", "a whole number from 65536 to 1073741824"),
        ("log.retention_seconds=-1", "a whole number from 0 to 3153600000"),
        ("stop_seconds=-0.5", "a number from 0 to 3600"),
        ("logging.level=loud", '"debug" or "info" or "warning" or "error"'),
        ("logging.format=JSON", '"auto" or "json" or "text"'),
        ("mqs.oversize=sometimes", '"cut" or "reject"'),
        ("data=", "a path"),
    ],
)
def test_a_wrong_value_is_refused_by_key_value_and_what_is_expected(flag: str, expected: str) -> None:
    key, _, value = flag.partition("=")
    with pytest.raises(ConfigError) as refused:
        from_set(flag)
    assert str(refused.value) == f"--set: {key} = {value!r}: expected {expected}"


def test_one_request_must_fit_into_what_all_requests_may_take() -> None:
    with pytest.raises(ConfigError, match=r"http\.buffered_bytes_max = 1048576 .*http\.body_bytes_max = 16777216"):
        from_set("http.buffered_bytes_max=1048576")
    with pytest.raises(ConfigError, match=r"lines\.buffered_bytes_max = 4194304 .*lines\.line_bytes_max = 8388608"):
        from_set("lines.buffered_bytes_max=4194304", "lines.line_bytes_max=8388608")
    assert from_set("lines.buffered_bytes_max=4194304").lines.line_bytes_max == 4194304, "unless it is said"


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:7843", Address("127.0.0.1", 7843)),
        ("0.0.0.0:0", Address("0.0.0.0", 0)),
        ("localhost:65535", Address("localhost", 65535)),
        ("queue-1.example.org:80", Address("queue-1.example.org", 80)),
        ("[::1]:7843", Address("::1", 7843)),
        ("[::]:0", Address("::", 0)),
        ("[::ffff:127.0.0.1]:1", Address("::ffff:127.0.0.1", 1)),
    ],
)
def test_an_address_is_read_and_shown_alike(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert str(address) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":::",
        ":7843",
        "7843",
        "127.0.0.1",
        "127.0.0.1:",
        "127.0.0.1:port",
        "127.0.0.1:65536",
        "127.0.0.1:-1",
        "127.0.0.1:7843 ",
        "::1:7843",
        "[::1]",
        "[127.0.0.1]:80",
        "[localhost]:80",
        "*:80",
        "a b:80",
        "http://localhost:80",
        "localhost:٨٠",
    ],
)
def test_an_address_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"http\.address = .*expected HOST:PORT"):
        from_set(f"http.address={text}")


# Tokens


def test_tokens_are_a_list_in_the_file_and_separated_by_commas_elsewhere() -> None:
    expected = ("one", "two+/=")
    assert from_file('auth.tokens = ["one", "two+/="]').auth.tokens == expected
    assert from_file('auth.tokens = "one,two+/="').auth.tokens == expected
    assert from_set("auth.tokens=one, two+/=").auth.tokens == expected
    assert from_environment(PENSTOCK_AUTH_TOKENS="one,two+/=").auth.tokens == expected
    assert from_environment(PENSTOCK_AUTH_TOKENS="").auth.tokens == ()


@pytest.mark.parametrize("tokens", ["hush,", ",hush", "hush,,x", "hush x", "hush\x7f", "húsh", "hush" * 257])
def test_a_token_that_cannot_be_sent_is_refused_without_being_shown(tokens: str) -> None:
    with pytest.raises(ConfigError, match=r"auth\.tokens: expected tokens") as refused:
        from_set(f"auth.tokens={tokens}")
    assert "hush" not in str(refused.value)
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__


@pytest.mark.parametrize(
    "text", ['auth.tokens = ["hush", 1]', 'auth.tokens = {a = "hush"}', "auth.tokens = [['hush']]"]
)
def test_tokens_of_the_wrong_type_are_refused_without_being_shown(text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        from_file(text)
    assert "auth.tokens" in str(refused.value)
    assert "hush" not in str(refused.value)


def test_a_token_is_not_shown_where_the_rest_of_a_flag_is_wrong() -> None:
    for flag in ("auth.tokens hush", "auth.tokens:hush", "auth.token=hush"):
        with pytest.raises(ConfigError) as refused:
            from_set(flag)
        assert "hush" not in str(refused.value)


def test_tokens_are_not_shown_in_print() -> None:
    config = from_set("auth.tokens=hush,still")
    for shown in (repr(config), str(config), f"{config.auth}"):
        assert "hush" not in shown
        assert "2 hidden" in shown


# Documentation


def test_every_key_says_what_it_is_for() -> None:
    for setting in SETTINGS.values():
        assert setting.description.endswith(".")
        assert setting.expected


def test_the_manual_lists_every_key_as_it_is() -> None:
    manual = Path(__file__).parents[2] / "docs" / "operating.md"
    assert settings_table() in manual.read_text("utf-8")


def test_an_old_name_of_a_key_works_and_warns_wherever_it_is_set() -> None:
    with pytest.warns(DeprecatedName, match=r"topics\.retries is deprecated .*: use topics\.max_attempts"):
        assert from_set("topics.retries=3").topics.max_attempts == 3
    with pytest.warns(DeprecatedName):
        assert from_environment(PENSTOCK_TOPICS_VISIBILITY_SECONDS="5").topics.lease_seconds == 5
    with pytest.warns(DeprecatedName), pytest.raises(ConfigError, match=r"give only topics\.max_attempts"):
        from_set("topics.retries=3", "topics.max_attempts=3")


def test_a_dead_letter_queue_of_topics_that_no_message_can_reach_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"topics\.dead_letter_queue = failed has no effect with topics\.max_attempts = 0"
    ):
        from_set("topics.dead_letter_queue=failed", "topics.max_attempts=0")
    with pytest.raises(ConfigError, match="expected the name of a queue"):
        from_set("topics.dead_letter_queue=" + "x" * 251)
