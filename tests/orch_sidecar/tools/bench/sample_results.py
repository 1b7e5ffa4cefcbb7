"""Calls and runs that have ended, for tests."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from orch_sidecar.tools.bench.load.call import Call, Fate
from orch_sidecar.tools.bench.load.endpoint import Capabilities, Endpoint
from orch_sidecar.tools.bench.load.scenario import Plan, Scenario
from orch_sidecar.tools.bench.results.result import EvidenceDocument, Result
from orch_sidecar.tools.bench.results.summary import RunRecord, result_of
from orch_sidecar.tools.facts.labels.snapshot import Snapshot
from orch_sidecar.tools.facts.tables.notes import Arrivals
from orch_sidecar.tools.facts.tables.row import Label
from tests.orch_sidecar.tools.facts.snapshots import document, home, snapshot

ONLINE = Scenario(Label.BATCHED_ONLINE, 1, arrivals=Arrivals.POISSON, rate_per_s=10.0)
SINGLE = Scenario(Label.SINGLE_STREAM, 1, arrivals=Arrivals.ONE_BY_ONE, clients=1)
OFFLINE = Scenario(Label.OFFLINE, 1, arrivals=Arrivals.AT_ONCE)

HOST = {"system": "Linux", "cpus": 2}
IDLE = {"lag_s": (0.0, 0.001), "cpu_share": 0.1}


def answered(
    at_s: float,
    *,
    first_s: float = 0.1,
    token_s: float = 0.01,
    tokens: int = 11,
    due: bool = True,
    **more: Any,
) -> Call:
    """An answer that began to come `first_s` after its request, and came in single tokens."""
    times = [round(at_s + first_s + token_s * index, 6) for index in range(tokens)]
    values: dict[str, Any] = {
        "due_s": round(at_s, 6) if due else None,
        "free_s": None if due else at_s,
        "sent_s": round(at_s, 6),
        "ended_s": times[-1],
        "status": 200,
        "fate": Fate.ANSWERED,
        "input_tokens": 32,
        "output_tokens": tokens,
        "event_s": array("d", times),
    }
    values |= more
    return Call(first_s=next(iter(values["event_s"]), None), **values)


def refused(at_s: float, why: str = "queue_full") -> Call:
    call = Call(due_s=at_s, sent_s=at_s, ended_s=at_s)
    call.status, call.fate, call.why = 429, Fate.REFUSED, why
    return call


def in_a_row(count: int, every_s: float = 0.1, **more: Any) -> list[Call]:
    return [answered(every_s * index, **more) for index in range(count)]


def run(calls: Sequence[Call], scenario: Scenario = ONLINE, **more: Any) -> RunRecord:
    """On an engine that took exactly these requests and batched where it may."""
    single = scenario.label is Label.SINGLE_STREAM
    count = sum(call.fate is Fate.ANSWERED for call in calls)
    name = {Label.SINGLE_STREAM: "home", Label.OFFLINE: "offline"}.get(scenario.label, "cloud")
    label = {"measurement_type": scenario.label.value, "profile": name, "pool": name}
    engine = home if single else snapshot
    steps = {"1": [90, 0.9]} if single else {"1": [20, 0.2], "4": [20, 0.4], "6": [5, 0.15]}
    if scenario.label is Label.OFFLINE:
        steps = {"1": [20, 0.2], "4": [10, 0.2], "8": [5, 0.15]}
    documents = more.pop("documents", [document(pool=name), document(pool=name)])
    ends: dict[str, Snapshot | None] = {
        "before": engine(**label),
        "after": engine(requests_total=100 + count, steps_by_batch=steps, **label),
    }
    for end, stated in zip(ends, documents, strict=True):
        state, idle = more.pop(end, ends[end]), end == "before" or more.pop("idle_after", True)
        more[end] = None if state is None else Capabilities(stated, state, idle)
    salt = "20261121T211711Z-x-4037a0"
    plan = Plan(
        endpoint=Endpoint.of("http://127.0.0.1:8080"),
        model=more.pop("model", "tiny"),
        scenario=replace(scenario, prompts="synthetic, 32 in, 11 out", cache_salt=salt),
        prompts=lambda seed: iter(()),
        ignore_eos=True,
        given=more.pop("given", {}),
        trial=more.pop("trial", False),
    )
    values: dict[str, Any] = {
        "plan": plan,
        "id": salt,
        "digest": "9f86d081884c7d659a2feaa0c55ad015",
        "began_at": "2026-11-21T21:17:15.090Z",
        "calls": calls,
        **IDLE,
        "host": HOST,
        "evidence": EvidenceDocument(),
    }
    return RunRecord(**values | more)


def unverified(calls: Sequence[Call], scenario: Scenario = ONLINE, **more: Any) -> RunRecord:
    """On an endpoint that tells nothing of its engine."""
    return run(calls, scenario, **{"before": None, "after": None} | more)


def result(calls: Sequence[Call], scenario: Scenario = ONLINE, **more: Any) -> Result:
    return result_of(run(calls, scenario, **more))
