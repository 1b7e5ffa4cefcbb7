"""What a reload changes and what it cannot, as values."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, SecretStr

from orch_sidecar.config.changes import CHANGEABLE, Configuration, Reloads, plan
from orch_sidecar.config.settings import SidecarSettings
from vllm_plugin import profile as profiles
from vllm_plugin.profile import AdmissionRules, Profile

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
    made = plan(configuration(), configuration())
    assert (made.changes, made.needs_restart, made.rules) == ((), (), {})
    assert made.after == configuration()


def test_limit_changes() -> None:
    made = plan(configuration(), configuration(max_body_bytes=2000, log_level="DEBUG"))
    assert shown(made.changes) == ["max_body_bytes: 1000 -> 2000", "log_level: INFO -> DEBUG"]
    assert made.needs_restart == ()
    assert made.after.settings == Settings(max_body_bytes=2000, log_level="DEBUG")


def test_what_needs_a_restart_stays_and_is_said_and_the_rest_changes() -> None:
    made = plan(configuration(), configuration(port=9000, body_timeout_s=10.0))
    assert shown(made.needs_restart) == ["port: 8080 -> 9000"]
    assert made.after.settings == Settings(port=8080, body_timeout_s=10.0)


def test_it_is_said_again_at_the_next_reload() -> None:
    first = plan(configuration(), configuration(port=9000))
    assert shown(plan(first.after, configuration(port=9000)).needs_restart)
    assert not plan(first.after, configuration()).needs_restart


def test_key_is_not_shown() -> None:
    old = configuration(engine_api_key="sk-old")
    made = plan(old, configuration(engine_api_key="sk-new"))
    assert shown(made.needs_restart) == ["engine_api_key: (not shown) -> (not shown)"]
    assert "sk-" not in repr(made.needs_restart)
    assert made.after.settings == old.settings


def test_password_in_a_url_is_not_shown() -> None:
    pools = [[Pool(name="a", url=f"http://user:{password}@x")] for password in ("one", "two")]
    made = plan(configuration(pools=pools[0]), configuration(pools=pools[1]))
    assert shown(made.needs_restart) == ["pools.a.url: (not shown) -> (not shown)"]


def test_pools_are_told_apart_by_name_whatever_their_order() -> None:
    a, b, c = Pool(name="a"), Pool(name="b"), Pool(name="c", url="http://c")
    made = plan(configuration(pools=[a, b]), configuration(pools=[c, a]))
    assert sorted(shown(made.needs_restart)) == [
        "pools.b.name: b -> (absent)",
        f"pools.b.url: {b.url} -> (absent)",
        "pools.c.name: (absent) -> c",
        "pools.c.url: (absent) -> http://c",
    ]
    assert made.after.settings == Settings(pools=[a, b])


def test_admission_rules_change() -> None:
    changed = with_bulk(queue_capacity=7, max_wait_s=5.0)
    made = plan(configuration(), configuration(changed))
    assert shown(made.changes) == [
        "cloud: admission.bulk.queue_capacity: 512 -> 7",
        "cloud: admission.bulk.max_wait_s: 600.0 -> 5.0",
    ]
    assert made.rules == {"cloud": changed.admission}
    assert made.after.profiles == {"cloud": changed}


def test_rules_that_settings_override_are_compared_as_they_hold() -> None:
    """The profile changed, but what the settings say instead did not."""
    old, new = configuration(), configuration(with_bulk(queue_capacity=7))
    same = Configuration(new.settings, new.profiles, old.rules)
    assert plan(old, same).rules == {}


def test_class_may_go_and_come() -> None:
    without = CLOUD.model_copy(
        update={"admission": CLOUD.admission.model_copy(update={"interactive": None})}
    )
    there, back = plan(configuration(), configuration(without)), None
    assert there.rules["cloud"].interactive is None
    assert any("interactive.batch.most: 16 -> (absent)" in text for text in shown(there.changes))
    back = plan(there.after, configuration())
    assert back.rules == {"cloud": CLOUD.admission}


def test_profile_is_taken_whole_or_not_at_all() -> None:
    """Its rules may have been written for the engine that it describes."""
    rules = with_bulk(queue_capacity=7)
    engine = {**rules.engine, "max_num_seqs": rules.slots.model_copy(update={"default": 8})}
    made = plan(configuration(), configuration(rules.model_copy(update={"engine": engine})))
    assert shown(made.needs_restart) == ["cloud: profile.engine.max_num_seqs.default: 64 -> 8"]
    assert (made.changes, made.rules) == ((), {})
    assert made.after.rules == {"cloud": CLOUD.admission}
    assert made.after.profiles == {"cloud": CLOUD}


def test_another_profile_under_the_same_pool_needs_a_restart() -> None:
    made = plan(configuration(), configuration(HOME))
    names = [change.name for change in made.needs_restart]
    assert {"cloud: profile.name", "cloud: profile.measurement_type"} <= set(names)
    assert made.rules == {}


def test_pool_that_is_new_or_gone_changes_no_rules_and_is_said() -> None:
    old = configuration()
    other = Configuration(old.settings, {"other": HOME}, {"other": HOME.admission})
    made = plan(old, other)
    assert shown(made.needs_restart) == ["names of the pools: cloud -> other"]
    assert made.rules == {}
    assert made.after == old


def test_every_changeable_setting_exists() -> None:
    assert set(SidecarSettings.model_fields) >= CHANGEABLE


@pytest.mark.parametrize(
    "name", ["host", "port", "engine_url", "engine_api_key", "api_keys_file", "profile"]
)
def test_where_it_listens_and_whom_it_serves_needs_a_restart(name: str) -> None:
    assert name not in CHANGEABLE


def test_settings_of_the_sidecar_can_be_planned() -> None:
    old, new = SidecarSettings(), SidecarSettings(port=1, max_body_bytes=2048, client_stall_s=1.0)
    made = plan(Configuration(old, {}, {}), Configuration(new, {}, {}))
    assert shown(made.changes) == [
        "max_body_bytes: 16777216 -> 2048",
        "client_stall_s: 120.0 -> 1.0",
    ]
    assert shown(made.needs_restart) == ["port: 8080 -> 1"]
    assert isinstance(made.after.settings, SidecarSettings)
    assert made.after.settings.port == 8080


def test_generation_counts_what_was_read_from_one() -> None:
    reloads = Reloads(configuration())
    assert reloads.document() == {
        "generation": 1,
        "last_reload_error": None,
        "needs_restart": [],
    }
    reloads.read(configuration(port=1, max_body_bytes=5))
    assert reloads.document() == {
        "generation": 2,
        "last_reload_error": None,
        "needs_restart": ["port"],
    }
    assert reloads.configuration.settings == Settings(max_body_bytes=5)


def test_wrong_file_changes_nothing_and_is_said_until_a_right_one() -> None:
    reloads = Reloads(configuration())
    reloads.read(configuration(port=1))
    reloads.failed("cloud.yaml: bulk: a mapping is needed")
    assert reloads.document() == {
        "generation": 2,
        "last_reload_error": "cloud.yaml: bulk: a mapping is needed",
        "needs_restart": ["port"],
    }
    assert reloads.configuration == configuration()
    reloads.read(configuration())
    assert reloads.document() == {
        "generation": 3,
        "last_reload_error": None,
        "needs_restart": [],
    }


def test_keys_that_cannot_be_read_are_said_until_they_can_and_each_error_is_news_once() -> None:
    reloads = Reloads(configuration())
    assert reloads.keys_failed("keys.yaml is gone")
    assert not reloads.keys_failed("keys.yaml is gone")
    assert reloads.document()["last_reload_error"] == "keys.yaml is gone"
    assert reloads.keys_failed("keys.yaml holds no key")
    reloads.keys_read()
    assert reloads.document()["last_reload_error"] is None
    reloads.failed("keys.yaml is gone")
    assert not reloads.keys_failed("keys.yaml is gone"), "a reload has said so"
    reloads.keys_read()
    assert reloads.document()["last_reload_error"] == "keys.yaml is gone", "of that reload"
    reloads.read(configuration())
    assert reloads.document()["last_reload_error"] is None


def test_key_of_a_pool_is_not_shown() -> None:
    told = {"name": "a", "url": "http://a", "profile": "cloud"}
    old, new = (SidecarSettings(pools=[told | {"api_key": key}]) for key in ("sk-1", "sk-2"))
    made = plan(Configuration(old, {}, {}), Configuration(new, {}, {}))
    assert shown(made.needs_restart) == ["pools.a.api_key: (not shown) -> (not shown)"]
