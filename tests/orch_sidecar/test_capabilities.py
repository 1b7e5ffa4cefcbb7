"""The sidecar's `/v1/capabilities` document."""

from __future__ import annotations

from typing import Any

from orch_sidecar.admission.core import Admission
from orch_sidecar.capabilities import API_VERSION, document

ENGINE: dict[str, Any] = {
    "engine": "vllm",
    "engine_version": "0.32.0",
    "pool": "cloud",
    "models": ["tiny"],
    "ctx_max": 2048,
    "profile": "cloud",
    "measurement_type": "batched_online",
    "batching": True,
    "slots_total": 8,
    "slots_free": 6,
    "running": 2,
    "waiting": 0,
    "peak": 7,
    "foreign": 99,
    "leased": 99,
    "kv_tokens_total": 4096,
    "kv_cache_usage": 0.1,
    "preemptions_total": 0,
    "steps_by_batch": {"1": [5, 0.1]},
    "state": "ready",
    "epoch": "e1",
    "leases": ["secret.lease.1"],
    "observed_at": "2025-11-21T03:00:00.000Z",
    "supported_workloads": ["completion"],
    "rate_limits": {},
    "features": {},
}


def admission_of(*, slots: int = 8, foreign: int = 1, leased: int = 3) -> Admission:
    core = Admission(16, 60.0)
    core.engine_reports("e1", slots, foreign, 0.0)
    if leased:
        core.arrive("a", leased, 0.0)
    return core


def told(
    engine: dict[str, Any] | None, admission: Admission, state: str = "ready", age: int | None = 4
) -> dict[str, Any]:
    return document(
        engine, admission, state=state, class_name="bulk", age_ms=age, sidecar_version="0.1.0"
    )


def test_document_without_an_engine_says_so() -> None:
    assert told(None, Admission(16, 60.0), "starting", None) == {
        "api_version": API_VERSION,
        "sidecar_version": "0.1.0",
        "state": "starting",
        "engines": [],
    }


def test_ledger_stands_in_for_what_the_engine_says_of_leases() -> None:
    core = admission_of()
    core.arrive("waits", 8, 1.0)
    [entry] = told(ENGINE, core)["engines"]
    assert entry["leased"] == 3
    assert entry["foreign"] == 1
    assert entry["slots_free"] == 4
    assert entry["queue"] == {"bulk": 1}
    assert entry["oversubscription_violations_total"] == 0
    assert (entry["state"], entry["age_ms"]) == ("ready", 4)


def test_everything_else_is_passed_on_as_the_engine_says_it() -> None:
    [entry] = told(ENGINE, admission_of())["engines"]
    replaced = {"slots_free", "leased", "foreign", "state"}
    for key in set(ENGINE) - replaced - {"leases"}:
        assert entry[key] == ENGINE[key]


def test_leases_are_not_told_to_the_world() -> None:
    assert "secret" not in str(told(ENGINE, admission_of()))


def test_no_slot_is_free_while_the_engine_is_not_ready() -> None:
    for state in ("stale", "down", "draining", "starting"):
        answer = told(ENGINE, admission_of(), state)
        [entry] = answer["engines"]
        assert entry["slots_free"] == 0
        assert entry["state"] == answer["state"] == state


def test_slots_free_is_never_negative() -> None:
    [entry] = told(ENGINE, admission_of(slots=4, foreign=9, leased=0))["engines"]
    assert entry["slots_free"] == 0


def test_engines_own_document_is_left_as_it_was() -> None:
    before = dict(ENGINE)
    told(ENGINE, admission_of())
    assert before == ENGINE
