"""Compares the latencies of the last minute's requests with the SLOs of their class.

Pure: times are nanoseconds of a monotonic clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil
from typing import Any, Final

from orch_sidecar.observability.record import Outcome, RequestRecord
from vllm_plugin.contracts.profile import AdmissionRules, ServiceClass

WINDOW_S: Final = 60
_QUANTILES: Final = (0.5, 0.95)


def quantiles(values: Sequence[float]) -> list[float] | None:
    """Returns the median and the 95th percentile (nearest rank); None without values."""
    if not values:
        return None
    ranked = sorted(values)
    return [round(ranked[max(0, ceil(q * len(ranked)) - 1)], 2) for q in _QUANTILES]


def of_classes(
    ended: Iterable[tuple[RequestRecord, int]],
    classes: Sequence[ServiceClass],
    rules: AdmissionRules,
    now: int,
) -> dict[str, Any]:
    """Returns `latency` of a pool (see the package) from its records and the times of their ends.

    Counted are complete answers, once if several requests share one; their times are those of
    streams whose first byte is a token.
    """
    recent = [
        (record, at)
        for record, at in ended
        if record.outcome is Outcome.OK and not record.coalesced and now - at <= WINDOW_S * 1e9
    ]
    return {
        each.value: _entry(
            [(record, at) for record, at in recent if record.service_class is each], rules, each
        )
        for each in classes
    }


def _entry(
    recent: list[tuple[RequestRecord, int]], rules: AdmissionRules, service_class: ServiceClass
) -> dict[str, Any]:
    slos = rules.of(service_class)
    first, per_token, generated = list[float](), list[float](), 0
    for record, at in recent:
        tokens = record.output_tokens or record.generated_tokens or 0
        generated += tokens
        first_byte = record.first_byte
        if not record.stream or first_byte is None:
            continue
        if not record.endpoint.first_byte_is_token:
            continue
        first.append((first_byte - record.arrived) / 1e6)
        if tokens > 1 and record.cost == 1 and not record.client_limited:
            per_token.append((at - first_byte) / 1e6 / (tokens - 1))
    return {
        "answers": len(recent),
        "tokens": generated,
        "requests": len(first),
        "ttft_ms": quantiles(first),
        "ttft_slo_ms": slos.ttft_p95_ms,
        "tpot_ms": quantiles(per_token),
        "tpot_slo_ms": slos.tpot_p95_ms,
    }
