"""Compares the figures of MLCommons' load generator with those of the run's calls.

Both are of the same moments, but for the way between two threads. For the comparison ours are
defined as its are: a time counts from when it issued the query, a percentile is the value at the
rank below, and tokens/s count from when its clock began. Where a request was not answered nothing
is compared: it knows no failures.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any, Final

from orch_sidecar.tools.bench.load.call import Call
from orch_sidecar.tools.bench.results.result import ComparedFigure, LoadgenDocument

_LINE: Final = ":::MLLOG "
_NS_PER_MS: Final = 1_000_000
_PERCENTILES: Final = (50, 90, 95, 99)
# Its names of mean and percentiles, by ours.
_TIMES: Final = {
    "latency": ("result_mean_latency_ns", "result_{}.00_percentile_latency_ns"),
    "TTFT": (
        "result_first_token_mean_latency_ns",
        "result_first_token_{}.00_percentile_latency_ns",
    ),
    "TPOT": (
        "result_time_to_output_token_mean",
        "result_time_per_output_token_{}.00_percentile_ns",
    ),
}
_TOKENS: Final = ("result_tokens_per_second", "result_completed_tokens_per_second")


def compared(
    folder: str, detail: str, calls: Sequence[Call], began_s: float
) -> LoadgenDocument | None:
    """Returns its figures beside ours; None where it did not finish.

    `detail`: the log with them, of those in `folder`. `began_s`: when its clock began, by that of
    the calls.
    """
    found = _logged(detail)
    if "result_validity" not in found:
        return None
    return LoadgenDocument(
        folder=folder,
        valid=found["result_validity"] == "VALID",
        figures=list(_figures(found, calls, began_s)),
    )


def _logged(text: str) -> Mapping[str, Any]:
    """Returns the last value of each key in the detail log."""
    lines = (line.partition(_LINE)[2] for line in text.splitlines())
    entries = [json.loads(line) for line in lines if line]
    return {each["key"]: each["value"] for each in entries}


def _figures(
    found: Mapping[str, Any], calls: Sequence[Call], began_s: float
) -> Iterator[ComparedFigure]:
    served = [
        served
        if call.free_s is None or call.due_s is not None
        else replace(served, arrived_s=call.free_s)
        for call in calls
        if (served := call.served) is not None
    ]
    if not served or len(served) < len(calls):
        return
    seconds = max(each.ended_s for each in served) - began_s
    tokens_per_s = sum(each.output_tokens for each in served) / seconds
    for key in _TOKENS:
        if key in found:
            yield ComparedFigure(name="tokens/s", loadgen=found[key], ours=tokens_per_s)
    of_calls = {
        "latency": [each.latency_s for each in served],
        "TTFT": [each.ttft_s for each in served if each.ttft_s is not None],
        "TPOT": [each.tpot_s for each in served if each.tpot_s is not None],
    }
    for name, (mean_key, percentile_key) in _TIMES.items():
        times_ms = sorted(1000 * each for each in of_calls[name])
        if not times_ms:
            continue
        ours = {mean_key: (f"{name} mean, ms", fmean(times_ms))}
        for p in _PERCENTILES:
            at = len(times_ms) * p // 100
            ours[percentile_key.format(p)] = (f"{name} p{p}, ms", times_ms[at])
        for key, (text, value) in ours.items():
            if found.get(key):
                yield ComparedFigure(name=text, loadgen=found[key] / _NS_PER_MS, ours=value)
