"""Computes figures, goodput and client health from the calls of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from orch_sidecar.tools.bench.load.call import Call, ClientHealth, Fate
from orch_sidecar.tools.bench.results.result import (
    ClientDocument,
    Counts,
    FiguresDocument,
    Goodput,
    SpreadMs,
)
from orch_sidecar.tools.facts.labels.figures import Spread, figures, overlap, percentile, spread
from orch_sidecar.tools.facts.labels.thresholds import CLIENT_LATE_S, CLIENT_LATE_SHARE

# A client that is busier or wakes later than this adds to every time it measures.
_LAG_S: Final = 0.02
_CPU_SHARE: Final = 0.9

_MOST_REASONS: Final = 20


def counts_of(calls: Sequence[Call]) -> Counts:
    """Counts the outcomes, and the most frequent reasons of unanswered requests."""
    fates = Counter(call.fate for call in calls)
    reasons = Counter(call.why for call in calls if call.why)
    return Counts(
        sent=sum(call.sent_s is not None for call in calls),
        answered=fates[Fate.ANSWERED],
        refused=fates[Fate.REFUSED],
        failed=fates[Fate.FAILED],
        cut=fates[Fate.CUT],
        reasons=dict(reasons.most_common(_MOST_REASONS)),
        of_other_length=sum(not call.length_as_requested for call in calls),
        counted_by_events=sum(call.counted_by_events for call in calls),
    )


def figures_of(calls: Sequence[Call]) -> FiguresDocument | None:
    """Returns throughput and latency; None without an answer."""
    served = [made for call in calls if (made := call.served) is not None]
    if not served:
        return None
    answered = [call for call in calls if call.served is not None]
    found, known = figures(served), all(call.input_tokens is not None for call in answered)
    each = [s.output_tokens / s.latency_s for s in served if s.latency_s > 0]
    queued_s = [call.queue_ms / 1000 for call in answered if call.queue_ms is not None]
    return FiguresDocument(
        requests=found.requests,
        window_s=round(found.window_s, 6),
        input_tokens=found.input_tokens if known else None,
        output_tokens=found.output_tokens,
        tokens_per_s=round(found.tokens_per_s, 4),
        tokens_per_s_per_stream=round(percentile(each, 50) or 0.0, 4),
        requests_per_s=round(found.requests / found.window_s, 4),
        overlap=overlap(served),
        ttft_ms=None if found.ttft_s is None else _ms(found.ttft_s),
        tpot_ms=None if found.tpot_s is None else _ms(found.tpot_s),
        itl_ms=_spread_ms([gap for call in answered for gap in call.gaps_s]),
        latency_ms=_ms(found.latency_s),
        queue_ms=_spread_ms(queued_s),
    )


def goodput_of(calls: Sequence[Call], slo_ms: Mapping[str, float]) -> Goodput | None:
    """Returns the goodput; None without a bound, or without an answer."""
    served = [made for call in calls if (made := call.served) is not None]
    if not slo_ms or not served:
        return None
    window_s = figures(served).window_s
    kept = [each for each in served if each.meets(slo_ms)]
    return Goodput(
        requests=len(kept),
        share=round(len(kept) / len(calls), 4),
        requests_per_s=round(len(kept) / window_s, 4),
        tokens_per_s=round(sum(each.output_tokens for each in kept) / window_s, 4),
    )


def client_of(
    calls: Sequence[Call],
    host: Mapping[str, Any],
    health: ClientHealth,
    window_s: float,
    *,
    at_once: bool,
) -> ClientDocument:
    """Returns the client and its health. `at_once`: everything was due at the start.

    Then it may take a share of the window to send it, as may a pause of the client in any run.
    """
    late = spread([late_s for call in calls if (late_s := call.late_s) is not None])
    lag, some_s = spread(health.lag_s), CLIENT_LATE_SHARE * window_s
    causes = []
    if late is not None and late.p99 > max(CLIENT_LATE_S, some_s if at_once else 0.0):
        causes.append(f"requests were sent {1000 * late.p99:.1f} ms late (p99)")
    if lag is not None and lag.p99 > _LAG_S:
        causes.append(f"its event loop woke {1000 * lag.p99:.1f} ms late (p99)")
    elif lag is not None and lag.most > max(_LAG_S, some_s):
        causes.append(f"its event loop was blocked for {1000 * lag.most:.1f} ms")
    if health.cpu_share > _CPU_SHARE:
        causes.append(f"it used {health.cpu_share:.0%} of one core")
    return ClientDocument(
        host=dict(host),
        late_ms=None if late is None else _ms(late),
        loop_lag_ms=None if lag is None else _ms(lag),
        cpu_share=round(health.cpu_share, 3),
        bottleneck=causes,
    )


def _spread_ms(values_s: Sequence[float]) -> SpreadMs | None:
    found = spread(values_s)
    return None if found is None else _ms(found)


def _ms(found: Spread) -> SpreadMs:
    """Converts seconds to milliseconds."""
    names = ("mean", "p50", "p90", "p95", "p99")
    values = {name: round(1000 * getattr(found, name), 4) for name in names}
    early = {name: round(1000 * value, 4) for name, value in found.early.items()}
    return SpreadMs(**values, max=round(1000 * found.most, 4), early=early)
