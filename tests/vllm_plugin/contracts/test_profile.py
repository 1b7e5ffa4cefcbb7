"""Shipped and custom profiles, loaded by name or path, and their rules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.vllm_plugin.contracts.profiles import ADMISSION, CLASS, GOOD, OFFLINE, SINGLE, admission
from vllm_plugin.contracts.profile import (
    ArgumentRule,
    FullQueue,
    MeasurementType,
    ProfileError,
    ServiceClass,
    load,
    shipped,
)


def test_three_profiles_are_shipped() -> None:
    assert shipped() == ["cloud", "home", "offline"]


@pytest.mark.parametrize(
    ("name", "measurement_type", "batching", "slots"),
    [
        ("home", MeasurementType.SINGLE_STREAM, False, 1),
        ("cloud", MeasurementType.BATCHED_ONLINE, True, 64),
        ("offline", MeasurementType.OFFLINE, True, 256),
    ],
)
def test_shipped_profile_matches_its_name(
    name: str, measurement_type: MeasurementType, batching: bool, slots: int
) -> None:
    profile = load(name)
    assert profile.name == name
    assert profile.measurement_type is measurement_type
    assert profile.batching is batching
    assert profile.slots.value == slots
    assert profile.engine["enable_logging_iteration_details"].fixed is True


@pytest.mark.parametrize("document", [GOOD, GOOD | SINGLE, GOOD | OFFLINE])
def test_custom_profile_is_loaded_by_path(file: Path, document: dict[str, Any]) -> None:
    file.write_text(yaml.safe_dump(document))
    assert load(str(file)).name == "mine"


def test_bare_file_name_is_a_path(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text(yaml.safe_dump(GOOD))
    monkeypatch.chdir(file.parent)
    assert load("mine.yaml").name == "mine"


def test_tilde_is_the_home_directory(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No shell expands it in `--profile=~/mine.yaml`, nor in a file of settings."""
    file.write_text(yaml.safe_dump(GOOD))
    monkeypatch.setenv("HOME", str(file.parent))
    assert load(f"~/{file.name}").name == "mine"


@pytest.mark.parametrize("name", ["hoem", "", "..", "home.yml.bak"])
def test_unknown_name_is_rejected_with_the_known_ones(name: str) -> None:
    with pytest.raises(ProfileError, match="cloud, home, offline"):
        load(name)


def test_missing_and_unreadable_files_are_named(file: Path) -> None:
    with pytest.raises(ProfileError, match=r"mine\.yaml: cannot be read"):
        load(str(file))
    file.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(ProfileError, match=r"mine\.yaml: cannot be read"):
        load(str(file))
    with pytest.raises(ProfileError, match="cannot be read"):
        load(str(file.parent) + "/")


def test_rules_of_admission_are_read(file: Path) -> None:
    document = GOOD | admission(full_queue="drop-lru", bulk=CLASS | {"queue_capacity": 99})
    file.write_text(yaml.safe_dump(document))
    rules = load(str(file)).admission
    assert rules.full_queue is FullQueue.DROP_LRU
    assert rules.of(ServiceClass.INTERACTIVE).queue_capacity == 16
    assert rules.of(ServiceClass.BULK).queue_capacity == 99
    assert rules.bulk.tpot_p95_ms is None
    assert (rules.bulk.batch.least, rules.bulk.batch.most) == (1, 8)
    assert (rules.bulk_share, rules.aging_s, rules.reclaim) == (0.1, 10, False)


def test_bounds_that_a_measurement_replaces_may_be_left_out(file: Path) -> None:
    of_class = CLASS | {"batch": {"least": 2}}
    rules = {
        name: each for name, each in ADMISSION.items() if name not in ("aging_s", "bulk_share")
    }
    file.write_text(yaml.safe_dump(GOOD | {"admission": rules | {"bulk": of_class}}))
    rules_read = load(str(file)).admission
    assert (rules_read.bulk.batch.most, rules_read.aging_s) == (None, None)
    assert rules_read.bulk_share == 0.1


def test_without_an_interactive_class_the_rules_of_bulk_apply() -> None:
    rules = load("offline").admission
    assert rules.interactive is None
    assert rules.of(ServiceClass.INTERACTIVE) is rules.of(ServiceClass.BULK) is rules.bulk


def test_batched_profile_of_a_fixed_size_loads(file: Path) -> None:
    file.write_text(yaml.safe_dump(GOOD | {"engine": {"max_num_seqs": {"fixed": 4}}}))
    assert load(str(file)).slots.value == 4


def test_rule_states_its_objection() -> None:
    fixed = ArgumentRule(fixed=1)
    assert fixed.objection(1) is None
    assert fixed.objection(8) == "must be 1"
    bounded = ArgumentRule(default=64, minimum=2)
    assert bounded.objection(2) is None
    assert bounded.objection(1) == "must be at least 2"
    assert ArgumentRule(default=64).objection(1) is None


def test_rule_with_the_value_false_applies() -> None:
    rule = ArgumentRule(fixed=False)
    assert rule.value is False
    assert rule.objection(True) == "must be False"
