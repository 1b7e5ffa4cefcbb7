"""Parsing the state of an engine."""

from __future__ import annotations

from typing import Any

import pytest

from orch_sidecar.tools.facts.labels.snapshot import parse_snapshot
from tests.orch_sidecar.tools.facts.snapshots import CONDITIONS, document


def test_snapshot_has_the_values_of_the_document() -> None:
    found = parse_snapshot(document())
    assert (found.engine, found.engine_version, found.models) == ("vllm", "0.32.0", ("tiny",))
    assert found.steps_by_batch == {1: (10, 0.1), 4: (5, 0.1)}
    assert (found.requests_total, found.generation) == (100, 1)
    assert found.weights == "/models/tiny"
    assert found.conditions == CONDITIONS
    assert (found.busy_s, found.state, found.age_ms) == (0.5, "ready", 100)
    assert found.observed_at.timestamp() == 1795262400.0


SCHEDULER = {"max_num_batched_tokens": 512, "max_loras": 0, "execution": "eager"}


@pytest.mark.parametrize(
    ("stated", "read"),
    [
        ({"prefix_cache": {"queries_total": 64, "hits_total": 32}}, {"prefix_hits": 32}),
        ({"prefix_cache": {"queries_total": 64, "hits_total": 32}}, {"prefix_queries": 64}),
        ({"state": "paused"}, {"state": "paused"}),
        ({"foreign": 2, "leased": 3}, {"in_engine": 5}),
        ({"foreign": 2}, {"in_engine": 2}),
        # Engines of older releases do not report it, and were never one of several.
        ({"conditions": CONDITIONS | {"data_parallel": 1}}, {"conditions": CONDITIONS}),
        *(
            ({"conditions": CONDITIONS | noted}, {"conditions": CONDITIONS | noted})
            for noted in (SCHEDULER, {"data_parallel": 8})
        ),
    ],
)
def test_field_is_read_as_it_is_stated(stated: dict[str, Any], read: dict[str, Any]) -> None:
    found = parse_snapshot(document(**stated))
    assert {name: getattr(found, name) for name in read} == read
    assert (found == parse_snapshot(document())) is (read == {"conditions": CONDITIONS})


def test_snapshots_of_the_same_state_are_equal_whenever_they_were_taken() -> None:
    """An idle engine is one that reports the same twice."""
    later = parse_snapshot(document(observed_at="2026-11-21T12:00:01.000Z", age_ms=900))
    assert later == parse_snapshot(document())
    assert parse_snapshot(document(busy_seconds_total=0.6)) != later


def test_engines_own_document_has_no_generation_and_an_older_one_no_state() -> None:
    capabilities = document()
    del capabilities["generation"], capabilities["engines"][0]["state"]
    found = parse_snapshot(capabilities)
    assert (found.generation, found.state) == (0, "ready")


def test_one_of_several_pools_must_be_given() -> None:
    capabilities = document()
    capabilities["engines"].append(document(pool="home")["engines"][0])
    assert parse_snapshot(capabilities, "home").pool == "home"
    with pytest.raises(ValueError, match=r"a pool must be given: .* cloud, home"):
        parse_snapshot(capabilities)
    with pytest.raises(ValueError, match="must be one pool 'away'"):
        parse_snapshot(capabilities, "away")


@pytest.mark.parametrize("capabilities", [None, [], {}, {"engines": 1}, {"engines": ["x"]}])
def test_invalid_document_is_rejected(capabilities: Any) -> None:
    with pytest.raises(ValueError, match="no list `engines`"):
        parse_snapshot(capabilities)


INVALID: dict[str, tuple[Any, ...]] = {
    "epoch": (None,),
    "gpu": ("",),
    "measurement_type": ("aggregate",),
    "slots_total": ("8",),
    "foreign": (-1,),
    "requests_total": (True,),
    "models": ([], [1]),
    "steps_by_batch": (None, {"1": [1]}, {"x": [1, 2]}, {"1": [float("inf"), 2]}),
    "leased": ("1",),
    "weights": (None,),
    "conditions": (None,),
    "prefix_cache": (5,),
    "busy_seconds_total": (-1, float("nan"), 10**400, True),
    "observed_at": ("yesterday", "2026-11-21T12:00:00", None),
    "age_ms": (None,),
    "state": ("",),
}


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, each in INVALID.items() for v in each])
def test_invalid_field_is_named_with_its_value(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"{name}[][\w.]* is ") as caught:
        parse_snapshot(document(**{name: value}))
    nested = isinstance(value, list | dict) or name == "prefix_cache"
    assert nested or repr(value)[:60] in str(caught.value)


def test_invalid_part_of_a_field_is_named_with_its_value() -> None:
    for name, value in (
        *(("tensor_parallel", 0), ("kv_cache_dtype", ""), ("speculative", "x:y")),
        *(("max_loras", -1), ("execution", ""), ("data_parallel", 0)),
    ):
        with pytest.raises(ValueError, match=rf"conditions is .*: its {name} {value!r} must"):
            parse_snapshot(document(conditions=CONDITIONS | {name: value}))
    with pytest.raises(ValueError, match="its speculative is missing"):
        parse_snapshot(document(conditions=CONDITIONS | {"speculative": None}))
    for counts in ({}, {"queries_total": -1, "hits_total": 0}):
        with pytest.raises(ValueError, match=r"prefix_cache\.queries_total is"):
            parse_snapshot(document(prefix_cache=counts))


def test_pool_that_has_not_reported_yet_is_named_with_its_state() -> None:
    capabilities = document()
    capabilities["engines"][0] |= {"engine": None, "state": "starting"}
    with pytest.raises(ValueError, match="'cloud' has not reported yet: it is starting"):
        parse_snapshot(capabilities)
