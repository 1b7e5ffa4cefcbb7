"""The parsing and checking of state events."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_sidecar.engine_state import report
from orch_sidecar.engine_state.document import (
    Fields,
    InvalidReport,
    checked,
    ended,
    offered,
    parsed,
)
from orch_sidecar.engine_state.states import PoolState
from tests.orch_sidecar.parents import ledger
from tests.orch_sidecar.parents import state as published
from tests.vllm_plugin.examples import FACTS
from vllm_plugin.state.engine_state import EngineState

LEASE = f"{'a' * 16}.{'b' * 32}.3"
WHOLE: dict[str, Any] = EngineState(FACTS).document(None) | {"leases": [LEASE]}
GROUP = {
    "count": 5, "block_tokens": 16, "blocks_most": 65, "blocks_reading": 193, "blocks_extra": 1,
}  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


def test_document_of_the_plugin_is_valid_and_unchanged() -> None:
    document = parsed(json.dumps(WHOLE).encode())
    assert checked(document, whole=True) == WHOLE


def test_every_field_of_the_plugin_has_a_type_and_a_range() -> None:
    assert WHOLE.keys() <= set(Fields.__struct_fields__)


@pytest.mark.parametrize("state", ["ready", "starting"])
@pytest.mark.parametrize("slots", [0, 8])
def test_document_of_a_child_sidecar_is_valid(state: str, slots: int) -> None:
    """Also of a pool whose engine has not reported."""
    engine = WHOLE if slots else {}
    entry = published(ledger(slots), state=PoolState(state), document=engine)
    assert checked(entry, whole=True) == entry


@pytest.mark.parametrize(
    "name", ["epoch", "slots_total", "foreign", "peak", "profile", "measurement_type"]
)
def test_whole_document_needs_all_required_fields_and_a_change_needs_none(name: str) -> None:
    document = {key: value for key, value in WHOLE.items() if key != name}
    with pytest.raises(InvalidReport, match=f"{name} is missing"):
        checked(document, whole=True)
    assert checked(document, whole=False) == document


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("slots_total", [-1, 10**400, 4.0, True, "4", None, [], 100_001]),
        ("foreign", [-1, 10**400, None, "1"]),
        ("waiting", ["x", -1, 0.5, None]),
        ("ctx_max", [0, -1, 2048.0, "2048", None]),
        ("kv_cache_usage", [-0.1, 1.7, float("nan"), float("inf"), "0", None]),
        ("busy_seconds_total", [-1, 1e13, float("inf"), 10**400, "x"]),
        ("prefill_tokens_per_s", [-1, 1e13, {}]),
        ("step_time", ["x", {}, {"t0_ms": 1}, []]),
        ("steps_by_batch", [None, [], {"x": [1, 1.0]}, {"1": 5}, {"1": [None, 1]}, {"-1": [1, 1]},
                            {"1": [1.5, 1]}, {"9" * 20: [1, 1]}]),
        ("last_batches", [None, {}, [-1], [1.0], [True], ["1"], [10**8], [1] * 1001]),
        ("prefill", [None, {"tokens": 1}, {"tokens": -1, "seconds": 0}]),
        ("prefix_cache", [None, [], {"queries_total": 1}, {"queries_total": 1, "hits_total": -1},
                          {"queries_total": 1.5, "hits_total": 0}]),
        ("conditions", [None, [], "x"]),
        ("weights", [None, 5]),
        ("observed_at", [None, 5]),
        ("kv_blocks_total", [-1, 0.5, 10**400, None]),
        ("kv_blocks_kept", [-1, 0.5, 10**400, None]),
        ("kv_groups", [None, {}, [None], [{}], [GROUP] * 1001, *([GROUP, GROUP | {name: wrong}]
                       for name in GROUP for wrong in (-1, 0.5, "1", True, None, 10**400))]),
        ("models", ["tiny", [""], [1], {}, None]),
        ("leases", [["x"], [1], f"{LEASE}", [LEASE + "\n"], [LEASE.upper()], None]),
        ("state", ["", 5, None]),
        ("message", [5, []]),
        ("epoch", ["", 5, None]),
        ("batching", [1, "true", None]),
        ("features", [[], None, "x"]),
    ],
)  # fmt: skip
def test_invalid_field_is_named_with_its_value_and_the_rule(name: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(
            InvalidReport, match=rf"^{name} is .*: (it must be|Number out|Object missing)"
        ) as raised:
            checked(WHOLE | {name: value}, whole=True)
        assert len(str(raised.value)) < 300


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{", b"[1]", b"5", b"null", b"\xff{}", b'{"a": NaN}', b'{"a": -Infinity}',
        b'{"a": 1e999}', b'{"a": 1E+0999}', b'{"a": ' + b"9" * 310 + b".5}",
        b"[" * 100_000, b'{"a": 1' + b"0" * 5000 + b"}",
    ],
)  # fmt: skip
def test_data_that_is_not_a_json_object_is_rejected(data: bytes) -> None:
    with pytest.raises(InvalidReport):
        parsed(data)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_finite_number_is_parsed_as_it_is(number: float) -> None:
    assert parsed(json.dumps({"a": [number]}).encode()) == {"a": [number]}


@pytest.mark.parametrize("wrong", [[-1, 1.0], [5, "x"], [5], 5])
def test_batch_that_is_not_as_before_is_checked(wrong: Any) -> None:
    before = WHOLE | {"steps_by_batch": {"1": [5, 1.0], "2": [3, 0.5]}}
    same = {"steps_by_batch": {"1": [5, 1.0], "2": [4, 0.7], "4": [1, 0.1]}}
    assert checked(same, whole=False, before=before) == same
    for batch in ("1", "8"):
        change = {"steps_by_batch": {**same["steps_by_batch"], batch: wrong}}
        with pytest.raises(InvalidReport, match="steps_by_batch is"):
            checked(change, whole=False, before=before)


@given(st.sampled_from(sorted(WHOLE)), JSON)
def test_valid_field_can_be_used_and_published(name: str, value: Any) -> None:
    """By admission, the metrics and the parent sidecar: none of them meets nonsense."""
    try:
        document = checked(WHOLE | {name: value}, whole=True)
    except InvalidReport:
        return
    if document["slots_total"]:
        report.report_of(document)
    report.decode_steps_of(document)
    entry = published(ledger(), document=document)
    checked(entry, whole=True)


def test_offer_names_its_slots_and_its_number() -> None:
    assert offered({"cost": 2, "number": 7}) == (2, 7)
    for wrong in ({"cost": 0, "number": 1}, {"cost": 1, "number": True}, {"cost": None}):
        with pytest.raises(InvalidReport, match=r"(cost|number) is .*: it must be"):
            offered(wrong)
    with pytest.raises(InvalidReport, match="`cost`"):
        offered({})


def test_ended_leases_are_leases() -> None:
    assert ended({"leases": [LEASE]}) == [LEASE]
    for wrong in ({}, {"leases": 5}, {"leases": ["x"]}):
        with pytest.raises(InvalidReport, match="leases is"):
            ended(wrong)
