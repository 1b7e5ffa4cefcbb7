"""Shipped and custom profiles, loaded by name or path, and their rules.

Invalid profiles are rejected with file, key and rule.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from vllm_plugin.contracts.profile import (
    ArgumentRule,
    FullQueue,
    MeasurementType,
    ProfileError,
    ServiceClass,
    load,
    shipped,
)

CLASS: dict[str, Any] = {
    "ttft_p95_ms": 1000.0,
    "tpot_p95_ms": None,
    "queue_capacity": 16,
    "max_wait_s": 30,
    "batch": {"least": 1, "most": 8},
}

ADMISSION: dict[str, Any] = {
    "full_queue": "reject",
    "aging_s": 10,
    "bulk_share": 0.1,
    "coalescing": False,
    "interactive": CLASS,
    "bulk": CLASS,
}

GOOD: dict[str, Any] = {
    "name": "mine",
    "measurement_type": "batched_online",
    "batching": True,
    "engine": {"max_num_seqs": {"default": 8, "minimum": 2}},
    "admission": ADMISSION,
}

SINGLE = {
    "measurement_type": "single_stream",
    "batching": False,
    "engine": {"max_num_seqs": {"fixed": 1}},
    "admission": ADMISSION,
}

OFFLINE = {
    "measurement_type": "offline",
    "admission": ADMISSION | {"interactive": None},
}


def admission(**change: Any) -> dict[str, Any]:
    """Returns a change of the profile's admission rules."""
    return {"admission": ADMISSION | change}


def bulk(**change: Any) -> dict[str, Any]:
    """Returns a change of the rules of bulk requests."""
    return admission(bulk=CLASS | change)


def slots(**rule: Any) -> dict[str, Any]:
    """Returns a change of the rule for the number of slots."""
    return {"engine": {"max_num_seqs": rule}}


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
    file.write_text(yaml.safe_dump(GOOD | slots(fixed=4)))
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


def rejection(file: Path, document: Any) -> str:
    """Returns the message for an invalid profile."""
    file.write_text(document if isinstance(document, str) else yaml.safe_dump(document))
    with pytest.raises(ProfileError) as rejected:
        load(str(file))
    message = str(rejected.value)
    assert message.startswith(f"{file}: ")
    return message


@pytest.mark.parametrize(
    ("change", "key", "rule"),
    [
        ({"slots": 8}, "slots", "Extra inputs are not permitted"),
        ({"batching": "yes"}, "batching", "valid boolean"),
        ({"batching": 1}, "batching", "valid boolean"),
        ({"measurement_type": "fast"}, "measurement_type", "'single_stream', 'batched_online'"),
        ({"name": "My Profile"}, "name", "match pattern"),
        ({"name": 5}, "name", "valid string"),
        ({"engine": {"max_num_seqs": 8}}, "engine.max_num_seqs", "valid dictionary"),
        (
            slots(default=8, minimum=2, maximum=9),
            "engine.max_num_seqs.maximum",
            "Extra inputs are not permitted",
        ),
        (slots(fixed=8, default=8), "engine.max_num_seqs", "exactly one of `fixed` and `default`"),
        (slots(), "engine.max_num_seqs", "exactly one of"),
        (
            slots(fixed=8, minimum=2),
            "engine.max_num_seqs",
            "`minimum` is allowed with `default` only",
        ),
        (slots(default=8, minimum="2"), "engine.max_num_seqs.minimum", "valid integer"),
        (
            {"engine": GOOD["engine"] | {"dtype": {"default": "auto", "minimum": 2}}},
            "engine.dtype",
            "`default` must be an integer",
        ),
        (admission(full_queue="drop"), "admission.full_queue", "'reject' or 'drop-lru'"),
        (admission(aging_s=0), "admission.aging_s", "greater than 0"),
        (admission(bulk_share=1), "admission.bulk_share", "less than 1"),
        (admission(bulk_share=-0.1), "admission.bulk_share", "greater than or equal to 0"),
        (admission(reserved_share=0.25), "admission.reserved_share", "not permitted"),
        (admission(coalescing="yes"), "admission.coalescing", "valid boolean"),
        (admission(bulk=None), "admission.bulk", "valid dictionary"),
        (admission(queue_capacity=16), "admission.queue_capacity", "Extra inputs"),
        (bulk(queue_capacity=-1), "admission.bulk.queue_capacity", "greater than or equal to 0"),
        (bulk(queue_capacity=1.5), "admission.bulk.queue_capacity", "valid integer"),
        (bulk(max_wait_s=0), "admission.bulk.max_wait_s", "greater than 0"),
        (bulk(ttft_p95_ms=0), "admission.bulk.ttft_p95_ms", "greater than 0"),
        (bulk(tpot_p95_ms="fast"), "admission.bulk.tpot_p95_ms", "valid number"),
        (bulk(batch={"least": 9, "most": 8}), "admission.bulk.batch", "`least` (9) must not be"),
        (bulk(batch={"least": 0, "most": 8}), "admission.bulk.batch.least", "or equal to 1"),
        (admission(window_ms=50), "admission.window_ms", "Extra inputs"),
    ],
)
def test_invalid_value_is_rejected_with_file_key_and_rule(
    file: Path, change: dict[str, Any], key: str, rule: str
) -> None:
    message = rejection(file, GOOD | change)
    assert f"{key}: " in message
    assert rule in message


@pytest.mark.parametrize("key", sorted(set(ADMISSION) - {"bulk_share", "aging_s"}))
def test_admission_rules_have_no_default(file: Path, key: str) -> None:
    """An absent class is written as null, and so is an absent SLO."""
    without = {name: value for name, value in ADMISSION.items() if name != key}
    assert f"admission.{key}: Field required" in rejection(file, GOOD | {"admission": without})


@pytest.mark.parametrize("key", sorted(CLASS))
def test_rules_of_a_class_have_no_default(file: Path, key: str) -> None:
    without = {name: value for name, value in CLASS.items() if name != key}
    message = rejection(file, GOOD | admission(interactive=without))
    assert f"admission.interactive.{key}: Field required" in message


def test_missing_keys_are_all_listed(file: Path) -> None:
    message = rejection(file, {"name": "mine"})
    for key in ("measurement_type", "batching", "engine", "admission"):
        assert f"{key}: Field required" in message


@pytest.mark.parametrize(
    ("document", "rule"),
    [
        (GOOD | SINGLE | {"batching": True}, "single_stream requires batching: false"),
        (GOOD | SINGLE | slots(fixed=2), "single_stream requires engine.max_num_seqs: {fixed: 1}"),
        (
            GOOD | SINGLE | slots(default=1),
            "single_stream requires engine.max_num_seqs: {fixed: 1}",
        ),
        (GOOD | {"batching": False}, "batched_online requires batching: true"),
        (
            GOOD | {"measurement_type": "offline", "batching": False},
            "offline requires batching: true",
        ),
        (
            GOOD | {"measurement_type": "offline"},
            "offline requires admission.interactive: null (every request is bulk)",
        ),
        (GOOD | admission(interactive=None), "batched_online requires admission.interactive"),
        (
            GOOD | SINGLE | admission(interactive=None),
            "single_stream requires admission.interactive",
        ),
        (GOOD | slots(fixed=1), "more than one slot"),
        (GOOD | slots(default=8), "more than one slot"),
        (GOOD | slots(default=8, minimum=1), "more than one slot"),
        (
            GOOD | slots(default=2, minimum=4),
            "`default` must be an integer that is not below `minimum`",
        ),
        (GOOD | {"engine": {}}, "`engine.max_num_seqs` must be given, as an integer rule"),
        (GOOD | slots(fixed=True), "`engine.max_num_seqs` must be given, as an integer rule"),
        (GOOD | slots(fixed="8"), "`engine.max_num_seqs` must be given, as an integer rule"),
    ],
)
def test_profile_that_contradicts_itself_does_not_load(
    file: Path, document: dict[str, Any], rule: str
) -> None:
    assert rule in rejection(file, document)


@pytest.mark.parametrize(
    ("text", "line", "key"),
    [
        ("name: a\nname: b\n", 2, "name"),
        (
            "name: a\nengine:\n  max_num_seqs: {fixed: 1}\n  max_num_seqs: {fixed: 8}\n",
            4,
            "max_num",
        ),
        ("engine: {max_num_seqs: {fixed: 1, fixed: 8}}\n", 1, "fixed"),
    ],
)
def test_duplicate_key_is_rejected_with_its_line(
    file: Path, text: str, line: int, key: str
) -> None:
    message = rejection(file, text)
    assert f"line {line}: key '{key}" in message
    assert "given twice" in message


@pytest.mark.parametrize(
    "text",
    [
        "", "just text", "- a\n- b\n", "null", "5", "name: [", "a: b: c", "\x00", "{[a]: b}",
        "? {a: b}\n: c", "name: !!python/object/apply:os.system ['true']", "--- a\n--- b\n",
        "a: &x {b: 1}\nc: {<<: *x}", "5: 6", "null: 1",
    ],
)  # fmt: skip
def test_file_that_is_not_a_profile_is_rejected(file: Path, text: str) -> None:
    rejection(file, text)
