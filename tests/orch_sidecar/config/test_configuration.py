"""What a reload changes and what it cannot; who may be a parent; keys of pools in files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, SecretStr

from orch_sidecar import cli
from orch_sidecar.config.configuration import (
    CHANGEABLE_SETTINGS,
    Configuration,
    ReloadState,
    load_pools,
    plan_reload,
)
from orch_sidecar.config.pool_settings import PoolSettings
from orch_sidecar.config.settings import SidecarSettings
from vllm_plugin.contracts import profile as profiles
from vllm_plugin.contracts.profile import AdmissionRules, Profile

CLOUD, HOME = profiles.load("cloud"), profiles.load("home")


class Pool(BaseModel):
    """A pool as settings may describe one."""

    name: str
    url: str = "http://127.0.0.1:8000"


class Settings(BaseModel):
    """A few settings of each kind."""

    port: int = 8080
    max_body_bytes: int = 1000
    body_timeout_s: float = 30.0
    log_level: str = "INFO"
    engine_api_key: SecretStr | None = None
    pools: list[Pool] = []


def configuration(profile: Profile = CLOUD, **settings: Any) -> Configuration:
    return Configuration(Settings(**settings), {"cloud": profile}, {"cloud": profile.admission})


def with_bulk(**changes: Any) -> Profile:
    """The cloud profile with other rules for bulk requests."""
    rules = CLOUD.admission.model_dump(mode="json")
    rules["bulk"] |= changes
    return CLOUD.model_copy(update={"admission": AdmissionRules.model_validate(rules)})


def shown(changes: tuple[Any, ...]) -> list[str]:
    return [str(change) for change in changes]


def test_same_configuration_changes_nothing() -> None:
    plan = plan_reload(configuration(), configuration())
    assert (plan.changes, plan.needs_restart, plan.rules) == ((), (), {})
    assert plan.after == configuration()


def test_changed_limit_is_applied_without_restart() -> None:
    plan = plan_reload(configuration(), configuration(max_body_bytes=2000, log_level="DEBUG"))
    assert shown(plan.changes) == ["max_body_bytes: 1000 -> 2000", "log_level: INFO -> DEBUG"]
    assert plan.needs_restart == ()
    assert plan.after.settings == Settings(max_body_bytes=2000, log_level="DEBUG")


def test_setting_that_needs_a_restart_is_kept_and_reported() -> None:
    plan = plan_reload(configuration(), configuration(port=9000, body_timeout_s=10.0))
    assert shown(plan.needs_restart) == ["port: 8080 -> 9000"]
    assert plan.after.settings == Settings(port=8080, body_timeout_s=10.0)


def test_needed_restart_is_reported_by_every_reload() -> None:
    first = plan_reload(configuration(), configuration(port=9000))
    assert shown(plan_reload(first.after, configuration(port=9000)).needs_restart)
    assert not plan_reload(first.after, configuration()).needs_restart


def test_key_is_not_shown() -> None:
    old = configuration(engine_api_key="sk-old")
    plan = plan_reload(old, configuration(engine_api_key="sk-new"))
    assert shown(plan.needs_restart) == ["engine_api_key: (not shown) -> (not shown)"]
    assert "sk-" not in repr(plan.needs_restart)
    assert plan.after.settings == old.settings


def test_password_in_a_url_is_not_shown() -> None:
    pools = [[Pool(name="a", url=f"http://user:{password}@x")] for password in ("one", "two")]
    plan = plan_reload(configuration(pools=pools[0]), configuration(pools=pools[1]))
    assert shown(plan.needs_restart) == ["pools.a.url: (not shown) -> (not shown)"]


def test_pools_are_compared_by_name_in_any_order() -> None:
    a, b, c = Pool(name="a"), Pool(name="b"), Pool(name="c", url="http://c")
    plan = plan_reload(configuration(pools=[a, b]), configuration(pools=[c, a]))
    assert sorted(shown(plan.needs_restart)) == [
        "pools.b.name: b -> (absent)",
        f"pools.b.url: {b.url} -> (absent)",
        "pools.c.name: (absent) -> c",
        "pools.c.url: (absent) -> http://c",
    ]
    assert plan.after.settings == Settings(pools=[a, b])


def test_changed_admission_rules_are_applied_without_restart() -> None:
    changed = with_bulk(queue_capacity=7, max_wait_s=5.0)
    plan = plan_reload(configuration(), configuration(changed))
    assert shown(plan.changes) == [
        "cloud: admission.bulk.queue_capacity: 512 -> 7",
        "cloud: admission.bulk.max_wait_s: 600.0 -> 5.0",
    ]
    assert plan.rules == {"cloud": changed.admission}
    assert plan.after.profiles == {"cloud": changed}


def test_rules_are_compared_with_their_overrides() -> None:
    """The profile changed, but what the settings replace in it did not."""
    old, new = configuration(), configuration(with_bulk(queue_capacity=7))
    same = Configuration(new.settings, new.profiles, old.rules)
    assert plan_reload(old, same).rules == {}


def test_class_can_be_removed_and_added() -> None:
    without = CLOUD.model_copy(
        update={"admission": CLOUD.admission.model_copy(update={"interactive": None})}
    )
    there, back = plan_reload(configuration(), configuration(without)), None
    assert there.rules["cloud"].interactive is None
    assert any("interactive.batch.least: 4 -> (absent)" in text for text in shown(there.changes))
    back = plan_reload(there.after, configuration())
    assert back.rules == {"cloud": CLOUD.admission}


def test_profile_changes_as_a_whole_or_not_at_all() -> None:
    """Its rules may have been written for the engine that it describes."""
    rules = with_bulk(queue_capacity=7)
    engine = {**rules.engine, "max_num_seqs": rules.slots.model_copy(update={"default": 8})}
    plan = plan_reload(configuration(), configuration(rules.model_copy(update={"engine": engine})))
    assert shown(plan.needs_restart) == ["cloud: profile.engine.max_num_seqs.default: 64 -> 8"]
    assert (plan.changes, plan.rules) == ((), {})
    assert plan.after.rules == {"cloud": CLOUD.admission}
    assert plan.after.profiles == {"cloud": CLOUD}


def test_another_profile_under_the_same_pool_needs_a_restart() -> None:
    plan = plan_reload(configuration(), configuration(HOME))
    names = [change.name for change in plan.needs_restart]
    assert {"cloud: profile.name", "cloud: profile.measurement_type"} <= set(names)
    assert plan.rules == {}


def test_added_or_removed_pool_is_reported_and_changes_no_rules() -> None:
    old = configuration()
    other = Configuration(old.settings, {"other": HOME}, {"other": HOME.admission})
    plan = plan_reload(old, other)
    assert shown(plan.needs_restart) == ["names of the pools: cloud -> other"]
    assert plan.rules == {}
    assert plan.after == old


def test_every_changeable_setting_exists() -> None:
    assert set(SidecarSettings.model_fields) >= CHANGEABLE_SETTINGS


@pytest.mark.parametrize(
    "name",
    [
        "host", "port", "engine_url", "engine_api_key", "api_keys_file", "api_keys_required",
        "gateways", "allowed_hosts", "profile",
    ],
)  # fmt: skip
def test_addresses_and_engines_need_a_restart(name: str) -> None:
    assert name not in CHANGEABLE_SETTINGS


def test_settings_of_the_sidecar_are_compared() -> None:
    old, new = SidecarSettings(), SidecarSettings(port=1, max_body_bytes=2048, client_stall_s=1.0)
    plan = plan_reload(Configuration(old, {}, {}), Configuration(new, {}, {}))
    assert shown(plan.changes) == [
        "max_body_bytes: 16777216 -> 2048",
        "client_stall_s: 120.0 -> 1.0",
    ]
    assert shown(plan.needs_restart) == ["port: 8080 -> 1"]
    assert isinstance(plan.after.settings, SidecarSettings)
    assert plan.after.settings.port == 8080


def test_generation_counts_configurations_from_one() -> None:
    state = ReloadState(configuration())
    assert state.document() == {
        "generation": 1,
        "last_reload_error": None,
        "needs_restart": [],
    }
    state.accept(configuration(port=1, max_body_bytes=5))
    assert state.document() == {
        "generation": 2,
        "last_reload_error": None,
        "needs_restart": ["port"],
    }
    assert state.configuration.settings == Settings(max_body_bytes=5)


def test_error_changes_nothing_and_is_reported_until_the_next_reload() -> None:
    state = ReloadState(configuration())
    state.accept(configuration(port=1))
    state.failed("cloud.yaml: bulk: a mapping is needed")
    assert state.document() == {
        "generation": 2,
        "last_reload_error": "cloud.yaml: bulk: a mapping is needed",
        "needs_restart": ["port"],
    }
    assert state.configuration == configuration()
    state.accept(configuration())
    assert state.document() == {
        "generation": 3,
        "last_reload_error": None,
        "needs_restart": [],
    }


def test_error_of_the_keys_is_reported_until_they_are_read_and_new_once() -> None:
    state = ReloadState(configuration())
    assert state.keys_failed("keys.yaml is gone")
    assert not state.keys_failed("keys.yaml is gone")
    assert state.document()["last_reload_error"] == "keys.yaml is gone"
    assert state.keys_failed("keys.yaml holds no key")
    state.accept_keys()
    assert state.document()["last_reload_error"] is None
    state.failed("keys.yaml is gone")
    assert not state.keys_failed("keys.yaml is gone"), "a reload has reported it"
    state.accept_keys()
    assert state.document()["last_reload_error"] == "keys.yaml is gone", "of that reload"
    state.accept(configuration())
    assert state.document()["last_reload_error"] is None


def test_key_of_a_pool_is_not_shown() -> None:
    pool = {"name": "a", "url": "http://a", "profile": "cloud"}
    old, new = (SidecarSettings(pools=[pool | {"api_key": key}]) for key in ("sk-1", "sk-2"))
    plan = plan_reload(Configuration(old, {}, {}), Configuration(new, {}, {}))
    assert shown(plan.needs_restart) == ["pools.a.api_key: (not shown) -> (not shown)"]


def loaded(**key: object) -> PoolSettings:
    pool = {"name": "a", "url": "http://a:1", "profile": "cloud"} | key
    [(found, _)] = load_pools(SidecarSettings(pools=[PoolSettings.model_validate(pool)]))
    return found


def test_parents_need_keys_unless_the_setting_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert cli.read_settings([]).parents == "keys"
    monkeypatch.setenv("ORCH_PARENTS", "open")
    assert cli.read_settings([]).parents == "open"
    with pytest.raises(cli.InvalidSettings, match="parents"):
        cli.read_settings(["--parents", "closed"])


def test_key_of_a_pool_is_read_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(" secret\n")
    found = loaded(api_key_file=path)
    assert found.api_key is not None
    assert found.api_key.get_secret_value() == "secret"
    assert "secret" not in repr(found)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "No such file"),
        (b"", "it is empty, but must contain a key"),
        (b" \n", "it is empty, but must contain a key"),
        (b"two words", "must consist of printable ASCII characters without spaces"),
        (b"\xff\xfe", "must consist of printable ASCII characters without spaces"),
    ],
)
def test_unusable_file_is_an_error_of_one_line_with_its_path_and_the_rule(
    tmp_path: Path, content: bytes | None, problem: str
) -> None:
    path = tmp_path / "key"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=problem) as caught:
        loaded(api_key_file=path)
    assert f"pool a: api_key_file {path}: " in str(caught.value)
    assert "two words" not in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_key_and_its_file_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has api_key and api_key_file") as caught:
        loaded(api_key="secret", api_key_file=tmp_path / "key")
    assert "secret" not in str(caught.value)
