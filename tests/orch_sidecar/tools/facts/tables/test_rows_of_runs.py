"""No row that a run earned is refused: whatever its times and lengths, its notes agree."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from orch_sidecar.tools.bench.load.call import Call
from orch_sidecar.tools.bench.load.scenario import Scenario
from orch_sidecar.tools.bench.results.result import Status, row_of
from orch_sidecar.tools.bench.results.summary import result_of
from orch_sidecar.tools.facts.evidence.imported import load_of, to_row
from orch_sidecar.tools.facts.labels.figures import figures
from orch_sidecar.tools.facts.labels.measured import Engine, Source
from orch_sidecar.tools.facts.labels.observation import Run
from orch_sidecar.tools.facts.tables.notes import Arrivals
from orch_sidecar.tools.facts.tables.row import Label, Row
from tests.orch_sidecar.tools.bench.sample_results import (
    OFFLINE,
    ONLINE,
    SINGLE,
    answered,
    run,
    unverified,
)
from tests.orch_sidecar.tools.facts.snapshots import home, snapshot

DECLARED = Engine(engine="vLLM 0.32.0", precision="BF16", gpu="H100", gpu_count=1)
TYPED = {"engine": "vLLM 0.32.0", "precision": "BF16", "gpu": "H100", "gpu_count": 1}
SLO = {"ttft": 500.0}

SECONDS = st.floats(0.0, 50.0) | st.floats(0.0, 0.01)
# Pause before a request, time to its first token, time per token, tokens.
ANSWER = st.tuples(SECONDS, st.floats(1e-4, 20.0), st.floats(1e-6, 2.0), st.integers(2, 300))
ANSWERS = st.lists(ANSWER, min_size=1, max_size=90)
CLOSED = replace(ONLINE, arrivals=Arrivals.CLOSED_LOOP, rate_per_s=None, slo_ms=SLO)

Drawn = list[tuple[float, float, float, int]]


def in_turn(drawn: Drawn) -> list[Call]:
    """The requests of one client, each after the answer to the one before."""
    calls: list[Call] = []
    now_s = 0.0
    for pause_s, first_s, token_s, tokens in drawn:
        now_s += pause_s
        more: dict[str, Any] = {"first_s": first_s, "token_s": token_s, "tokens": tokens}
        calls.append(answered(now_s, due=False, **more))
        assert calls[-1].ended_s is not None
        now_s = calls[-1].ended_s
    return calls


def due(drawn: Drawn) -> list[Call]:
    """Requests by a schedule."""
    calls: list[Call] = []
    at_s = 0.0
    for pause_s, first_s, token_s, tokens in drawn:
        at_s += pause_s
        calls.append(answered(at_s, first_s=first_s, token_s=token_s, tokens=tokens))
    return calls


def measured(calls: list[Call], scenario: Scenario) -> Row:
    """The row of a verified run, on an engine that decoded one step of all that it may."""
    profile = {Label.SINGLE_STREAM: "home", Label.OFFLINE: "offline"}.get(scenario.label, "cloud")
    own = {"measurement_type": scenario.label.value, "profile": profile, "pool": profile}
    engine = home if scenario.label is Label.SINGLE_STREAM else snapshot
    before = engine(**own)
    largest = 1 if before.slots_total == 1 else max(2, min(before.slots_total, len(calls)))
    worked = {str(batch): [*counts] for batch, counts in before.steps_by_batch.items()}
    worked[str(largest)] = [worked.get(str(largest), [0])[0] + 1, 1.0]
    after = engine(requests_total=100 + len(calls), steps_by_batch=worked, **own)
    found = result_of(run(calls, scenario, before=before, after=after))
    # Whether the label was earned is the judge's: most of what is drawn is mostly alone.
    return row_of(found.model_copy(update={"status": Status.VALID}))


@given(ANSWERS)
def test_single_stream_run(drawn: Drawn) -> None:
    assert measured(in_turn(drawn), SINGLE).is_confirmed


@given(st.lists(ANSWERS, min_size=2, max_size=5))
def test_closed_loop(drawn: list[Drawn]) -> None:
    calls = [call for each in drawn for call in in_turn(each)]
    scenario = replace(CLOSED, clients=len(drawn))
    assert measured(calls, scenario).is_confirmed
    assert not row_of(result_of(unverified(calls, scenario, given=TYPED))).is_confirmed


@given(ANSWERS)
def test_open_loop(drawn: Drawn) -> None:
    calls = due(drawn)
    assert measured(calls, replace(ONLINE, slo_ms=SLO)).is_confirmed
    assert not row_of(result_of(unverified(calls, given=TYPED))).is_confirmed


@given(ANSWERS)
def test_offline_run(drawn: Drawn) -> None:
    calls = due([(0.0, *each[1:]) for each in drawn])
    assert measured(calls, OFFLINE).is_confirmed


@given(st.lists(ANSWERS, min_size=1, max_size=5))
def test_imported_closed_loop(drawn: list[Drawn]) -> None:
    clients = len(drawn)
    at_once = ([(0.0, *first[1:]), *others] for first, *others in drawn)
    calls = [call for each in at_once for call in in_turn(each)]
    served = [request for call in calls if (request := call.served) is not None]
    single = clients == 1
    imported = Run(
        named={"tool": "guidellm 0.8.1"},
        model="org/model",
        claim=Label.SINGLE_STREAM if single else Label.BATCHED_ONLINE,
        load=load_of(None, clients),
        totals=figures(served),
        served=served,
    )
    to_row(imported, DECLARED, Source("report.json sha256:0123456789ab"))  # else it is rejected
