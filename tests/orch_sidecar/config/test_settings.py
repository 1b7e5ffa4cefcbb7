"""Settings: their sources, precedence and validation."""

from __future__ import annotations

import json
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from orch_sidecar import cli
from orch_sidecar.config.configuration import load_pools, rules_of

pytestmark = pytest.mark.usefixtures("no_settings_in_the_environment")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "orch.yaml"


def refusal(*words: str) -> str:
    """Returns the error of the command for invalid settings."""
    with pytest.raises(cli.InvalidSettings) as invalid:
        cli.read_settings(list(words))
    return str(invalid.value)


def test_defaults_listen_on_the_loopback_only() -> None:
    settings = cli.read_settings([])
    assert (settings.host, settings.port) == ("127.0.0.1", 8080)
    assert (settings.admin_host, settings.admin_port) == ("127.0.0.1", None)
    assert settings.queue_capacity is None, "the profile's"


def test_flag_overrides_environment_overrides_file_overrides_default(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text("port: 1\nqueue_capacity: 1\nlog_level: DEBUG\n")
    words = ["--config", str(config)]
    assert cli.read_settings(words).port == 1
    monkeypatch.setenv("ORCH_PORT", "2")
    monkeypatch.setenv("ORCH_QUEUE_CAPACITY", "2")
    assert cli.read_settings(words).port == 2
    settings = cli.read_settings([*words, "--port", "3"])
    assert (settings.port, settings.queue_capacity, settings.log_level) == (3, 2, "DEBUG")
    assert settings.host == "127.0.0.1"


def test_file_is_named_by_flag_or_environment(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text("port: 1\n")
    monkeypatch.setenv("ORCH_CONFIG", str(config))
    assert cli.read_settings([]).port == 1
    monkeypatch.setenv("ORCH_CONFIG", "/nowhere.yaml")
    assert cli.read_settings([f"--config={config}"]).port == 1


def test_file_of_one_call_is_not_read_by_the_next(config: Path) -> None:
    config.write_text("port: 1\n")
    cli.read_settings(["--config", str(config)])
    assert cli.read_settings([]).port == 8080


def test_empty_file_is_a_file_without_settings(config: Path) -> None:
    config.write_text("")
    assert cli.read_settings(["--config", str(config)]).port == 8080


def test_missing_file_is_named() -> None:
    assert "--config /nowhere.yaml: no such file" in refusal("--config", "/nowhere.yaml")


@pytest.mark.parametrize(
    "text",
    [
        "port: [", "- a", "5", "just text", "\x00", "[]", "- [port, 9999]", "[[1, 2]]", "8080: 1",
        "null: 1", "port: " + "[" * 3000,
    ],
)  # fmt: skip
def test_file_that_is_not_a_mapping_is_named(config: Path, text: str) -> None:
    config.write_text(text)
    assert f"--config {config}: " in refusal("--config", str(config))


def test_unknown_key_in_the_file_is_an_error(config: Path) -> None:
    config.write_text("port: 1\nqueue_capcity: 5\n")
    message = refusal("--config", str(config))
    assert "queue_capcity" in message
    assert "5: Extra inputs are not permitted" in message


def test_unknown_flag_is_an_error() -> None:
    assert "--queue-capcity" in refusal("--queue-capcity", "5")


def test_abbreviated_flag_is_an_error() -> None:
    assert "--queue-cap" in refusal("--queue-cap", "5")


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("port", "65536", "less than or equal to 65535"),
        ("port", "http", "valid integer"),
        ("queue_capacity", "-1", "greater than or equal to 0"),
        ("queue_timeout_s", "0", "greater than 0"),
        ("queue_timeout_s", "nan", "finite"),
        ("client_stall_s", "inf", "finite"),
        ("max_body_bytes", "16MB", "valid integer"),
        ("max_json_depth", "1", "greater than or equal to 4"),
        ("log_level", "LOUD", "DEBUG|INFO|WARNING|ERROR"),
        ("engine_url", "localhost:8000", "must be http://host:port"),
        ("engine_url", "http://h:8000/v1", "must have no path"),
        ("engine_url", "http://h:99999", "Port out of range"),
        ("engine_url", "http://h:0", "must have a port"),
        ("engine_url", "ftp://h", "must be http://host:port"),
    ],
)
def test_error_names_setting_value_and_rule(
    name: str, value: str, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flag, variable = f"--{name.replace('_', '-')}", f"ORCH_{name.upper()}"
    by_flag = refusal(flag, value)
    monkeypatch.setenv(variable, value)
    for message in (by_flag, refusal()):
        assert name in message
        assert flag in message
        assert variable in message
        assert repr(value) in message
        assert rule in message


@pytest.mark.parametrize("name", ["gateways", "allowed_hosts", "admin_allowed_hosts"])
def test_list_in_the_environment_that_is_no_json_is_named_with_its_rule(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"ORCH_{name.upper()}", "10.0.0.0/8")
    message = refusal()
    assert (
        message
        == f"ORCH_{name.upper()}: '10.0.0.0/8': must be a list in JSON, such as [\"10.0.0.7\"]"
    )


def test_value_that_is_no_key_is_shown_though_its_name_has_one() -> None:
    assert "'maybe'" in refusal("--api-keys-required", "maybe")


@pytest.mark.parametrize("value", ['["10.0.0.1/8"]', '["gateway.example"]', '["::1", "10.0.0"]'])
def test_gateways_are_addresses_or_networks(value: str) -> None:
    message = refusal("--gateways", value)
    assert "ORCH_GATEWAYS" in message
    assert "not a valid IPv4 or IPv6 network" in message
    assert cli.read_settings(["--gateways", '["10.0.0.0/8", "fd00::7"]']).gateways == [
        ip_network("10.0.0.0/8"),
        ip_network("fd00::7"),
    ]


@pytest.mark.parametrize("name", ["allowed_hosts", "admin_allowed_hosts"])
@pytest.mark.parametrize("value", ["http://orch", "orch:8080", "orch/ui", ""])
def test_allowed_hosts_are_names_alone(name: str, value: str) -> None:
    message = refusal(f"--{name.replace('_', '-')}", json.dumps([value]))
    assert f"ORCH_{name.upper()}" in message
    assert "must be a host name or an address" in message


def test_required_keys_need_a_file(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config.write_text("api_keys_required: true\n")
    by_file = refusal("--config", str(config))
    monkeypatch.setenv("ORCH_API_KEYS_REQUIRED", "true")
    for message in (by_file, refusal()):
        assert "ORCH_API_KEYS_REQUIRED" in message
        assert "must not be true while api_keys_file (ORCH_API_KEYS_FILE) is unset" in message
    assert cli.read_settings(["--api-keys-file", "keys.yaml"]).api_keys_required
    monkeypatch.delenv("ORCH_API_KEYS_REQUIRED")
    assert not cli.read_settings(["--api-keys-required", "false"]).api_keys_required
    assert cli.read_settings(["--api-keys-file", "keys.yaml"]).api_keys_required, "the default"


def test_tilde_is_the_home_directory_in_every_path(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No shell has expanded it in a file, in JSON or after `=`."""
    home = config.parent
    monkeypatch.setenv("HOME", str(home))
    config.write_text("batches: ~/b\napi_keys_file: ~/k\ncache_salt_file: ~/s\nrequest_log: ~/l\n")
    pool = {"name": "a", "url": "http://a", "profile": "home", "api_key_file": "~/key"}
    monkeypatch.setenv("ORCH_POOLS", json.dumps([pool]))
    settings = cli.read_settings(["--config=~/orch.yaml"])
    assert settings.batches == f"{home}/b", "as the directory and as the place of SQLite"
    assert (settings.api_keys_file, settings.cache_salt_file) == (home / "k", home / "s")
    assert settings.request_log == f"{home}/l"
    assert [pool.api_key_file for pool in settings.pools or ()] == [home / "key"]


def test_all_invalid_values_are_reported_at_once() -> None:
    message = refusal("--port", "-1", "--log-level", "LOUD")
    assert "--port" in message
    assert "--log-level" in message


def test_trailing_slash_of_the_engine_url_is_removed() -> None:
    assert cli.read_settings(["--engine-url", "http://h:1/"]).engine_url == "http://h:1"


@pytest.mark.parametrize("variable", ["ORCH_ENGINE_API_KEY", "ORCH_SIDECAR_KEY"])
@pytest.mark.parametrize("key", ["secret\n", "sec ret", "sécret", "secret\x01"])
def test_key_that_no_header_can_contain_is_rejected_and_not_shown(
    variable: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, key)
    message = refusal()
    assert variable in message
    assert "printable ASCII" in message
    assert key not in message
    assert repr(key) not in message


def test_key_of_the_wrong_type_is_not_shown_either(config: Path) -> None:
    config.write_text("engine_api_key: 1234567\n")
    assert "1234567" not in refusal("--config", str(config))


def test_key_is_not_in_the_settings_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCH_ENGINE_API_KEY", "secret")
    settings = cli.read_settings([])
    assert settings.engine_api_key is not None
    assert settings.engine_api_key.get_secret_value() == "secret"
    assert "secret" not in repr(settings)


POOLS = (
    '[{"name": "home", "url": "http://a:1/", "profile": "home"}, {"name": "big", '
    '"url": "http://b:2", "profile": "cloud", "api_key": "secret", "tier": true}]'
)


def test_pools_come_from_json_or_from_the_file(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text(f"pools: {POOLS}\n")  # YAML holds JSON
    from_file = cli.read_settings(["--config", str(config)])
    monkeypatch.setenv("ORCH_POOLS", POOLS)
    settings = cli.read_settings([])
    assert settings.pools == from_file.pools
    assert settings.pools is not None
    home, big = settings.pools
    assert (home.name, home.url, home.profile, home.api_key, home.tier) == (
        "home", "http://a:1", "home", None, False,
    )  # fmt: skip
    assert (big.name, big.tier) == ("big", True)
    assert "secret" not in repr(settings)


def test_without_pools_there_is_one_named_after_its_profile(config: Path) -> None:
    [(pool, profile)] = load_pools(cli.read_settings(["--profile", "cloud"]))
    assert (pool.name, pool.url, profile.name) == (
        "cloud",
        "http://127.0.0.1:8000",
        "cloud",
    )


def test_queue_settings_override_every_class_of_every_pool(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ORCH_POOLS", POOLS)
    settings = cli.read_settings(["--queue-capacity", "7", "--queue-timeout-s", "2.5"])
    for _, profile in load_pools(settings):
        rules = rules_of(profile, settings)
        assert rules.interactive is not None
        for each in (rules.interactive, rules.bulk):
            assert (each.queue_capacity, each.max_wait_s) == (7, 2.5)
        assert rules_of(profile, cli.read_settings([])) == profile.admission


def pool(**changes: Any) -> dict[str, Any]:
    return {"name": "a", "url": "http://a:1", "profile": "home"} | changes


@pytest.mark.parametrize(
    ("given", "place", "rule"),
    [
        ([pool(name="Home")], "0.name: 'Home'", "pattern"),
        ([pool(name="1a")], "0.name: '1a'", "pattern"),
        ([pool(url="a:1")], "0.url: 'a:1'", "http://host:port"),
        ([{"name": "a", "profile": "home"}], "0.url", "Field required"),
        ([pool(profile="")], "0.profile", "at least 1"),
        ([pool(x=1)], "0.x", "not permitted"),
        ([pool(below="b")], "0: ", "set tier: true"),
        ([pool(tier=True, below="B")], "0.below", "pattern"),
        ([pool(url="https://a:1", headless=True)], "0: ", "must begin with http://"),
        ([pool(name=f"a{57 * 'b'}", headless=True)], "0: ", "at most 57 characters"),
        (
            [pool(headless=True), pool(name="a-12")],
            "pools",
            "'a-12' is reserved for an address of the headless pool 'a'",
        ),
        ([pool(on_request=True)], "pools", "must be false for at least one pool"),
        ([], "pools", "at least 1"),
        ({}, "pools", "valid list"),
        ("not JSON", "pools", "valid list"),
        ([pool(), pool(url="http://b:1")], "pools", "must be unique: a occurs more than once"),
    ],
)
def test_error_of_a_pool_names_its_place_and_the_rule(
    given: object, place: str, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCH_POOLS", given if isinstance(given, str) else json.dumps(given))
    message = refusal()
    assert "ORCH_POOLS" in message
    assert place in message
    assert rule in message


@pytest.mark.parametrize(
    "text",
    [
        '[{"name": "a", "url": "http://a:1", "profile": "home", "api_key": "SECRET KEY"}]',
        '[{"name": "a", "url": "http://a:1", "profile": "home", "api_ky": "SECRET"}]',
        '[{"url": "http://a:1", "profile": "home", "api_key": "SECRET"}]',
        '[{"name": "a", "url": "http://u:SECRET@a:1", "profile": "home"}]',
        '[{"name": "a", "url": "http://a:1", "profile": "home", "api_key": ["SECRET"]}]',
        '[{"name": "a", "api_key": "SECRET"',
        '{"api_key": "SECRET"}',
    ],
)
def test_keys_of_pools_are_not_shown(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCH_POOLS", text)
    assert "SECRET" not in refusal()
