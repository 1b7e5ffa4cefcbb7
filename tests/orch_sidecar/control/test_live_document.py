"""The entry of a pool in the live document."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orch_sidecar.admission.availability import Drain, OrderedBy
from orch_sidecar.admission.controller import AdmissionController
from orch_sidecar.admission.key_share import KeyShare
from orch_sidecar.admission.ledger import Ledger
from orch_sidecar.admission.prediction.forecast import Place
from orch_sidecar.admission.queues import Queues
from orch_sidecar.admission.types import AdmissionRequest, EngineReport, Lease, QueuedRequest
from orch_sidecar.api.refusal import Reason
from orch_sidecar.control import live_document
from orch_sidecar.control.live_document import Admitted, Clock, Queued, advice
from orch_sidecar.engine_state.states import PoolState
from orch_sidecar.pools.status import AdmissionStatus, PoolStatus, absent, status_of
from tests.orch_sidecar.admission.examples import STEP_TIME, class_rules, core_of, rules
from tests.orch_sidecar.snapshots import CLOUD
from vllm_plugin.contracts.profile import ServiceClass

INTERACTIVE, BULK = ServiceClass.INTERACTIVE, ServiceClass.BULK
CLOCK = Clock(100.0, 1_000.0)
NAMES = {b"digest": "chat"}
ENGINE: dict[str, Any] = {
    "engine": "vllm", "engine_version": "0.32.0", "gpu": "CPU", "weights": "/models/tiny",
    "running": 5, "prefilling": 1, "kv_cache_usage": 0.25, "kv_tokens_total": 4096,
    "preemptions_total": 2, "steps_by_batch": {"1": [10, 0.1], "4": [5, 0.1]},
    "last_batches": [1, 4, 4],
    "step_time": {"t0_ms": 9.0, "c_ms": 1.0, "alpha": 1.0, "largest": 4, "quality": "good"},
}  # fmt: skip


def admission(slots: int = 8, foreign: int = 0) -> AdmissionController:
    made = AdmissionController(CLOUD.admission)
    made.engine_reports(EngineReport("e", slots, foreign), 0.0)
    return made


def ask(service_class: ServiceClass = INTERACTIVE, cost: int = 1) -> AdmissionRequest:
    return AdmissionRequest(service_class, cost, key=b"digest")


def entry(made: AdmissionController, **changes: Any) -> dict[str, Any]:
    known: dict[str, Any] = {
        "state": PoolState.READY,
        "document": ENGINE,
        "models": ["m"],
        "since_s": 50.0,
    }
    status = PoolStatus("cloud", CLOUD, status_of(made, 1.0), **(known | changes))
    return live_document.pool_entry(status, made.ledger)


def test_each_slot_is_counted_once_by_its_owner() -> None:
    made = admission(5, foreign=1)  # one less than are in use
    made.arrive("a", ask(cost=2), 0.0)
    made.arrive("b", ask(BULK), 0.0)
    made.arrive("c", ask(), 0.0)
    made.ledger.abandon("c")
    made.ledger.adopt("unknown", 1)
    assert live_document.slots(made.ledger) == {
        "total": 5, "free": 0, "interactive": 2, "bulk": 1, "idle": 0, "foreign": 1, "closing": 2,
    }  # fmt: skip


def test_entry_has_the_engine_its_label_and_its_counts() -> None:
    found = entry(admission())
    assert (found["measurement_type"], found["profile"]) == ("batched_online", "cloud")
    assert (found["engine"], found["models"]) == ("vllm 0.32.0", ["m"])
    assert (found["state"], found["since_at"]) == ("ready", 50_000)
    assert (found["message"], found["advice"], found["drain"]) == ("", "", None)
    assert (found["batches"], found["decode_steps"]) == ([1, 4, 4], 15)
    assert (found["running"], found["prefilling"]) == (5, 1)
    assert found["kv"] == {"usage": 0.25, "tokens": 4096, "preemptions": 2}
    assert found["violations"] == 0
    json.dumps(found)


def test_curve_has_the_measured_points_and_the_fit() -> None:
    assert entry(admission())["curve"] == {
        "points": [[1.0, 10.0, 10], [4.0, 20.0, 5]],
        "fit": {"t0_ms": 9.0, "c_ms": 1.0, "alpha": 1.0, "largest": 4, "good": True,
                "traffic": 1.0},
    }  # fmt: skip


def test_curve_of_many_batches_has_merged_points() -> None:
    steps = {str(batch): [2, 0.002 * batch] for batch in range(1, 257)}
    points = live_document.curve({"steps_by_batch": steps})["points"]
    assert len(points) <= 48
    assert sum(count for _, _, count in points) == 512
    assert all(ms == pytest.approx(batch) for batch, ms, _ in points)


def test_engine_that_has_not_reported_has_an_entry() -> None:
    found = entry(
        AdmissionController(CLOUD.admission),
        state=PoolState.STARTING, document={}, models=(), message="waiting for the engine",
    )  # fmt: skip
    assert (found["message"], found["engine"]) == ("waiting for the engine", None)
    assert "orch engine --profile cloud" in found["advice"]
    assert (found["batches"], found["curve"]) == ([], {"points": [], "fit": None})
    assert found["slots"]["total"] == found["running"] == found["kv"]["preemptions"] == 0


def test_drain_has_its_origin_and_since_when() -> None:
    made = admission()
    made.drain(Drain(OrderedBy.OPERATOR, 70.0))
    found = entry(made, state=PoolState.DRAINING, message="drains")
    assert found["drain"] == {"ordered_by": "operator", "since_at": 70_000}
    assert "Resume" in found["advice"]


def test_pool_without_an_address_has_an_entry_of_the_same_form() -> None:
    found = live_document.pool_entry(absent("far", CLOUD), Ledger())
    assert set(found) == set(entry(admission()))
    assert (found["state"], found["since_at"], found["waits"]) == ("absent", None, None)
    assert "Start a replica" in found["advice"]


def test_queue_has_places_and_times_and_names_of_keys() -> None:
    queued = QueuedRequest("t", ask(BULK, 2), 90.0, 130.0, Reason.QUEUE_TIMEOUT, 0.0)
    rows = live_document.queue([Queued("id", queued, Place(3, 104.5))], NAMES, CLOCK)
    assert rows == [
        {"id": "id", "class": "bulk", "key": "chat", "cost": 2, "position": 3,
         "queued_at": 1_090_000, "starts_at": 1_104_500, "expires_at": 1_130_000}
    ]  # fmt: skip
    [row] = live_document.queue([Queued("id", queued, Place(3, None))], {}, CLOCK)
    assert (row["key"], row["starts_at"]) == (None, None)


def test_admitted_requests_have_their_times() -> None:
    made = admission()
    lease = made.arrive("a", ask(), 95.0)
    assert isinstance(lease, Lease)
    admitted = Admitted("id", lease, 96.0, first_byte_is_token=True)
    assert live_document.admitted([admitted], NAMES, CLOCK) == [
        {"id": "id", "class": "interactive", "key": "chat", "cost": 1,
         "admitted_at": 1_095_000, "first_byte_at": 1_096_000, "phase": "generation"}
    ]  # fmt: skip


def test_request_reads_its_prompt_only_where_its_first_byte_would_tell() -> None:
    lease = admission().arrive("a", ask(), 95.0)
    assert isinstance(lease, Lease)
    requests = [Admitted("id", lease, None, tells) for tells in (True, False)]
    rows = live_document.admitted(requests, NAMES, CLOCK)
    assert [row["phase"] for row in rows] == ["prompt", None]


def test_keys_that_are_known_appear_by_their_names() -> None:
    known, other = KeyShare(b"digest"), KeyShare(b"removed")
    known.served, other.served = 30, 10
    queues = Queues()
    queues.line(ServiceClass.BULK).shares |= {b"digest": known, b"removed": other}
    assert live_document.keys(queues, NAMES) == [
        {"class": "bulk", "key": "chat", "queued": 0, "running": 0, "share": 0.75}
    ]


def test_rows_are_replaced_in_copies() -> None:
    pool = {"name": "cloud", "keys": [1], "queue": [2, 3], "admitted": [4]}
    [shown] = live_document.with_rows([pool], lambda rows: rows[1:])
    assert shown == {"name": "cloud", "keys": [], "queue": [3], "admitted": []}
    assert pool["queue"] == [2, 3]


READY = status_of(core_of(4), 0.0)


def pool_of(state: PoolState, admission: AdmissionStatus = READY) -> PoolStatus:
    return PoolStatus("a", CLOUD, admission, state=state)


@pytest.mark.parametrize(
    "state", [each for each in PoolState if each not in (PoolState.READY, PoolState.DRAINING)]
)
def test_every_state_in_which_nothing_is_served_shows_what_to_do(state: PoolState) -> None:
    assert advice(pool_of(state)).endswith(".")
    assert "{" not in advice(pool_of(state))


def test_engine_that_is_ready_needs_nothing_done() -> None:
    assert advice(pool_of(PoolState.READY)) == ""


def test_ready_engine_that_can_never_keep_its_slo_shows_what_to_do() -> None:
    misses = class_rules(tpot_p95_ms=STEP_TIME.ms(1) / 2)
    slow = status_of(core_of(4, rules(misses), step_time=STEP_TIME), 0.0)
    assert "tpot_p95_ms" in advice(pool_of(PoolState.READY, slow))


@pytest.mark.parametrize("ordered_by", OrderedBy)
def test_drain_shows_how_it_ends(ordered_by: OrderedBy) -> None:
    drained = READY._replace(draining=Drain(ordered_by, 0.0))
    assert advice(pool_of(PoolState.DRAINING, drained)).endswith(".")
