"""Parsing the state of an engine."""

from __future__ import annotations

from typing import Any

import pytest

from orch_sidecar.tools.facts.evidence.snapshot import InvalidSnapshot, parse_snapshot, pool_names
from tests.orch_sidecar.tools.facts.snapshots import document


def test_snapshot_has_the_values_of_the_document() -> None:
    found = parse_snapshot(document())
    assert (found.engine, found.engine_version, found.models) == ("vllm", "0.32.0", ("tiny",))
    assert found.steps_by_batch == {1: (10, 0.1), 4: (5, 0.1)}
    assert (found.requests_total, found.generation) == (100, 1)


def test_engines_own_document_has_no_generation() -> None:
    capabilities = document()
    del capabilities["generation"]
    assert parse_snapshot(capabilities).generation == 0


def test_all_sequences_are_in_the_engine() -> None:
    assert parse_snapshot(document(foreign=2, leased=3)).in_engine == 5
    assert parse_snapshot(document(foreign=2)).in_engine == 2


def test_one_of_several_pools_must_be_given() -> None:
    capabilities = document()
    capabilities["engines"].append(document(pool="home")["engines"][0])
    assert pool_names(capabilities) == ("cloud", "home")
    assert parse_snapshot(capabilities, "home").pool == "home"
    with pytest.raises(InvalidSnapshot, match=r"a pool must be given: .* cloud, home"):
        parse_snapshot(capabilities)
    with pytest.raises(InvalidSnapshot, match="must be one pool 'away'"):
        parse_snapshot(capabilities, "away")


@pytest.mark.parametrize("capabilities", [None, [], {}, {"engines": 1}, {"engines": ["x"]}])
def test_invalid_document_is_rejected(capabilities: Any) -> None:
    with pytest.raises(InvalidSnapshot, match="no list `engines`"):
        parse_snapshot(capabilities)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epoch", None),
        ("gpu", ""),
        ("slots_total", "8"),
        ("foreign", -1),
        ("requests_total", True),
        ("models", []),
        ("models", [1]),
        ("steps_by_batch", None),
        ("steps_by_batch", {"1": [1]}),
        ("steps_by_batch", {"x": [1, 2]}),
        ("steps_by_batch", {"1": [float("inf"), 2]}),
        ("leased", "1"),
    ],
)
def test_invalid_field_is_named_with_its_value(name: str, value: Any) -> None:
    with pytest.raises(InvalidSnapshot, match=name) as caught:
        parse_snapshot(document(**{name: value}))
    assert repr(value) in str(caught.value)


def test_pool_that_has_not_reported_yet_is_named_with_its_state() -> None:
    capabilities = document()
    capabilities["engines"][0] |= {"engine": None, "state": "starting"}
    with pytest.raises(InvalidSnapshot, match="'cloud' has not reported yet: it is starting"):
        parse_snapshot(capabilities)
