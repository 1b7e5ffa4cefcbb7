"""An engine at one end of a measurement."""

from __future__ import annotations

from typing import Any

import pytest

from orch_sidecar.tools.facts.evidence.snapshot import NotASnapshot, pools_of, snapshot_of
from tests.orch_sidecar.tools.facts.snapshots import document


def test_snapshot_says_what_the_document_says() -> None:
    found = snapshot_of(document())
    assert (found.engine, found.engine_version, found.models) == ("vllm", "0.32.0", ("tiny",))
    assert found.steps_by_batch == {1: (10, 0.1), 4: (5, 0.1)}
    assert (found.requests_total, found.generation) == (100, 1)


def test_engines_own_document_has_no_generation() -> None:
    told = document()
    del told["generation"]
    assert snapshot_of(told).generation == 0


def test_sequences_of_whomever_are_in_the_engine() -> None:
    assert snapshot_of(document(foreign=2, leased=3)).in_engine == 5
    assert snapshot_of(document(foreign=2)).in_engine == 2


def test_of_several_pools_one_must_be_named() -> None:
    told = document()
    told["engines"].append(document(pool="home")["engines"][0])
    assert pools_of(told) == ("cloud", "home")
    assert snapshot_of(told, "home").pool == "home"
    with pytest.raises(NotASnapshot, match=r"one pool must be named: .* cloud, home"):
        snapshot_of(told)
    with pytest.raises(NotASnapshot, match="no one pool 'away'"):
        snapshot_of(told, "away")


@pytest.mark.parametrize("told", [None, [], {}, {"engines": 1}, {"engines": ["x"]}])
def test_what_is_no_document_is_refused(told: Any) -> None:
    with pytest.raises(NotASnapshot, match="no list `engines`"):
        snapshot_of(told)


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
def test_field_that_is_wrong_is_named_with_its_value(name: str, value: Any) -> None:
    with pytest.raises(NotASnapshot, match=name) as caught:
        snapshot_of(document(**{name: value}))
    assert repr(value) in str(caught.value)


def test_pool_that_has_not_reported_yet_is_named_with_its_state() -> None:
    told = document()
    told["engines"][0] |= {"engine": None, "state": "starting"}
    with pytest.raises(NotASnapshot, match="'cloud' has not reported yet: it is starting"):
        snapshot_of(told)
