"""Rows whose label, load or batch contradict each other: labels that were not earned."""

from __future__ import annotations

import pytest

from tests.orch_sidecar.tools.facts.labelled_rows import NOTES, Way, altered, check_fault, faults_of

ID = "20260501T080000Z-single_stream-ab12cd"

LABELS = [
    Way(
        "a batched run relabelled offline",
        "closed",
        cells={"measurement_type": "offline"},
        notes={"profile": None},
        column="source_tag",
        rule="names a run of batched_online, but the row is labelled offline",
    ),
    Way(
        "a single-stream run under another label",
        "offline",
        cells={"source_tag": f"orch-bench:{ID}"},
        column="source_tag",
        rule="names a run of single_stream, but the row is labelled offline",
    ),
    Way(
        "a traced run under another label",
        "offline",
        cells={"source_tag": f"jaeger:orch-sidecar/{ID}"},
        notes={"tool": None},
        column="source_tag",
        rule="names a run of single_stream",
    ),
    Way(
        "one of several traced runs under another label",
        "offline",
        cells={"source_tag": f"otlp:spans.jsonl/{ID}#2"},
        notes={"tool": None, "scenario": ID},
        column="source_tag",
        rule="names a run of single_stream",
    ),
    Way(
        "a renamed source whose scenario names the label",
        "traced",
        cells={"source_tag": "lab 3"},
        notes={"scenario": ID},
        rule=f"'scenario={ID}': names a run of single_stream, but the row is labelled offline",
    ),
    Way(
        "the scenario of another run",
        "traced",
        notes={"scenario": "20260501T080000Z-offline-ffffff"},
        column="source_tag",
        rule="must end with the note scenario=20260501T080000Z-offline-ffffff",
    ),
    Way(
        "a claim that differs from the run's label",
        "claimed",
        cells={"source_tag": f"orch-bench:{ID}"},
        notes={"tool": "orch bench"},
        column="source_tag",
        rule="names a run of single_stream, but the row claims batched_online",
    ),
    Way("a claim in a confirmed row", "online", notes={"claim": "offline"}, rule="must be absent"),
    Way("an overlap in a confirmed row", "online", notes={"batch_is": "overlap"}, rule="absent"),
    Way("a confirmed batch to be confirmed", "claimed", notes={"batch_mean": "8"}, rule="absent"),
    Way(
        "the tool of another source",
        "online",
        cells={"source_tag": "vendor-a"},
        rule="'tool=orch bench': contradicts the source tag vendor-a",
    ),
]

REPLAYED: dict[str, str | None] = {
    "arrivals": "trace:0123456789abcdef", "trace_window": "0:300", "trace_time": "0.5",
    "trace_lengths": "0.0625", "bulk_clients": "24", "bulk_trace": "f" * 16,
    "latency_of": "interactive", "rate_per_s": None,
}  # fmt: skip
LOADS = [
    Way("single with a batch", "single", cells={"batch": "8"}, column="batch", rule="must be 1"),
    Way("single with a mean", "single", notes={"batch_mean": "7.8"}, rule="batch_mean=7.8': must"),
    Way("single with a peak", "single", notes={"batch_max": "2"}, rule="'batch_max=2': must be 1"),
    Way("single of 16", "single", {"at_once": "16", "arrivals": None}, rule="at_once=16': must"),
    Way("single in cloud", "single", {"profile": "cloud"}, rule="must not be cloud"),
    Way("single in offline", "single", {"profile": "offline"}, rule="must not be offline"),
    Way("single in a profile of the user's", "single", {"profile": "den"}),
    Way("single by a schedule", "single", {"arrivals": "poisson"}, rule="must be one_by_one"),
    Way("single at a rate", "single", {"rate_per_s": "2", "arrivals": None}, rule="no schedule"),
    Way("single with batching", "single", {"batching": "on"}, rule="'batching=on': must be off"),
    Way("online at home", "online", {"profile": "home"}, rule="must not be home"),
    Way("online in offline", "online", {"profile": "offline"}, rule="must not be offline"),
    Way("online one by one", "online", {"arrivals": "one_by_one", "rate_per_s": None},
        rule="'arrivals=one_by_one': must be closed_loop or"),
    Way("online with one client", "online", {"at_once": "1"}, rule="at_once=1': must be above 1"),
    Way("online without a batch", "online", {"batch_mean": "1", "batch_max": "1"}, {"batch": "1"},
        rule="'batch_max=1': must be above 1 in a row labelled batched_online"),
    Way("online that was mostly alone", "online", {"batch_mean": "1.3", "batch_max": "3"},
        {"batch": "1"}),
    Way("offline by a schedule", "offline", {"arrivals": "poisson"},
        rule="must be at_once or closed_loop in a row labelled offline"),
    Way("offline at a rate", "offline", {"rate_per_s": "4", "arrivals": None}, rule="no schedule"),
    Way("offline one by one", "offline", {"arrivals": "one_by_one"}, rule="arrivals=one_by_one"),
    Way("offline with one client", "offline", {"at_once": "1"}, rule="at_once=1': must be above"),
    Way("offline at home", "offline", {"profile": "home"}, rule="must not be home"),
    Way("offline in cloud", "offline", {"profile": "cloud"}, rule="must not be cloud"),
    Way("offline from a closed loop", "offline", {"arrivals": "closed_loop", "at_once": "64"}),
    Way("claimed load of another label", "claimed", {"claim": "single_stream"}, rule="a row that"),
    Way("arrivals of an unknown kind", "online", {"arrivals": "one-by-one"}, rule="one of one_by"),
    Way("arrivals with look-alikes", "offline", {"arrivals": "\u0430t_once"}, rule="one of one_by"),
    Way("a closed loop with a rate", "closed", {"rate_per_s": "4"}, rule="'rate_per_s=4': must be"),
    Way("a closed loop with bursts", "closed", {"burstiness": "2"}, rule="burstiness=2': must be"),
    Way("bursts in Poisson arrivals", "online", {"burstiness": "0.5"}, rule="must be absent with"),
    Way("bursts in gamma arrivals", "online", {"arrivals": "gamma", "burstiness": "0.5"}),
    Way("a replayed trace", "online", REPLAYED),
    Way("a trace of another tool", "online", {"arrivals": "trace", "rate_per_s": None}),
    Way("a trace with a short hash", "online", {"arrivals": "trace:0123"}, rule="16 digits of its"),
    Way("a replayed trace offline", "offline", {"arrivals": REPLAYED["arrivals"]},
        rule="must be at_once or closed_loop in a row labelled offline"),
    Way("a part of no trace", "online", {"trace_window": "0:300"},
        rule="'trace_window=0:300': must be absent without arrivals=trace"),
    Way("a part without a start", "online", REPLAYED | {"trace_window": ":300"}, rule="two times"),
    Way("no bulk clients", "online", REPLAYED | {"bulk_clients": "0"}, rule="must be a whole numb"),
    Way("latencies of bulk", "online", REPLAYED | {"latency_of": "bulk"}, rule="be interactive"),
    Way("a closed loop of one", "claimed", {"at_once": "1", "claim": "none"}, {"batch": "1"},
        rule="'at_once=1': must be above 1 with arrivals=closed_loop"),
]  # fmt: skip

BATCHES = [
    Way("the peak as the batch", "online", cells={"batch": "16"}, column="batch",
        rule="must be batch_mean=7.8, rounded"),
    Way("a batch below the mean", "online", cells={"batch": "7"}, column="batch", rule="rounded"),
    Way("a mean of which half was rounded away", "online", {"batch_mean": "7.5"}),
    Way("that mean rounded down", "online", {"batch_mean": "7.5"}, {"batch": "7"}),
    Way("a mean above the peak", "online", {"batch_max": "7"}, rule="must be at least batch_mean"),
    Way("a mean without a peak", "online", {"batch_max": None}, rule="have the note batch_max"),
    Way("a peak without a mean", "online", {"batch_mean": None}, rule="have the note batch_mean"),
    Way("no batch of a run", "online", {"batch_mean": None, "batch_max": None}, {"batch": "64"},
        rule="the notes batch_mean, batch_max are missing, which each row of a run has"),
    Way("no notes of an older table", "online",
        {"batch_mean": None, "batch_max": None, "tool": None},
        {"batch": "32", "source_tag": "vendor-a"}),
    Way("more answers at once than clients", "claimed", cells={"batch": "9"}, column="batch",
        rule="must be at most at_once=8"),
    Way("more answers at once than requests", "claimed", {"at_once": None}, {"batch": "65"},
        column="batch", rule="must be at most requests=64"),
]  # fmt: skip


@pytest.mark.parametrize("base", NOTES)
def test_row_of_a_real_run_is_accepted(base: str) -> None:
    assert faults_of(altered(base)) == []


@pytest.mark.parametrize("way", [*LABELS, *LOADS, *BATCHES], ids=lambda way: way.name)
def test_contradiction_is_a_fault_at_its_column(way: Way) -> None:
    check_fault(way)
