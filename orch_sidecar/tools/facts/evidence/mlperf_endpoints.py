"""Parses `performance/result_summary.json` of MLPerf's tool for endpoints (`inference-endpoint`).

Pure. What is not used, since it is defined otherwise than by `figures`:

| in the summary | meaning in the tool |
|---|---|
| `output_sequence_lengths`, `tps`, `tpot` | tokens of the text, tokenized again: a recorded run has 40 % more than the engine generated |
| `qps` of Poisson arrivals | without the last answer, over the window until that of the last query |
| `ttft`, `latency` | from the sending of a request: not used of a schedule, where they count from the due time |

So its tokens are those that the engine counted: it makes a row with the engine's states only. It
names no model, and has no times of a clock that others share. Percentiles are observed values.
"""  # noqa: E501 (a table)

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from orch_sidecar.tools.facts.evidence.imported import (
    Count,
    Fields,
    ImportedRun,
    Rejection,
    loop_of,
)
from orch_sidecar.tools.facts.labels.documents import at
from orch_sidecar.tools.facts.labels.figures import Totals
from orch_sidecar.tools.facts.labels.measured import LATENCIES
from orch_sidecar.tools.facts.tables.notes import Arrivals

_NS_PER_S: Final = 1e9
_NS_PER_MS: Final = 1e6


class _Summary(Fields):
    version: str
    complete: bool
    pattern: Literal["max_throughput", "poisson", "concurrency"] = at(
        "run_config.load_pattern.type"
    )
    rate: Annotated[float, Field(gt=0)] | None = at("run_config.load_pattern.target_qps")
    streams: Annotated[int, Field(ge=1)] | None = at("run_config.load_pattern.target_concurrency")
    issued: Count = at("n_samples_issued")
    answered: Annotated[int, Field(ge=1)] = at("n_samples_completed")
    duration_ns: Annotated[int, Field(gt=0)]
    ttft_ns: dict[str, float] = at("ttft.percentiles", default={})
    latency_ns: dict[str, float] = at("latency.percentiles")
    latencies_ns: float = at("latency.total")

    @property
    def arrivals(self) -> Arrivals:
        return Arrivals.POISSON if self.pattern == "poisson" else loop_of(self.at_once)

    @property
    def at_once(self) -> int | None:
        return self.streams if self.pattern == "concurrency" else None

    @property
    def latency_ms(self) -> dict[str, float]:
        """The percentiles by the names of the notes."""
        return {
            f"{name}_{place}_ms": found[key] / _NS_PER_MS
            for name, found in (("ttft", self.ttft_ns), ("latency", self.latency_ns))
            for place in LATENCIES[name]
            if (key := f"{float(place[1:])}") in found
        }


def run(document: object) -> ImportedRun:
    """Returns the run in a summary. Raises Rejection and ValidationError."""
    summary = _Summary.model_validate(document)
    if not summary.complete:
        raise Rejection("complete", False, "must be true: a part of a run has no last end")
    scheduled = summary.arrivals is Arrivals.POISSON
    return ImportedRun(
        tool=f"mlperf-endpoints {summary.version}",
        model="",
        arrivals=summary.arrivals,
        rate_per_s=summary.rate if scheduled else None,
        at_once=summary.at_once,
        failed=summary.issued - summary.answered,
        totals=Totals(
            requests=summary.answered,
            window_s=summary.duration_ns / _NS_PER_S,
            input_tokens=0,
            output_tokens=0,
        ),
        latency_ms={} if scheduled else summary.latency_ms,
        took_s=summary.latencies_ns / _NS_PER_S,
        notes={"window_is": "the tool's duration"},
        counts_tokens=False,
    )
