"""Computes figures, goodput and client health from the calls of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from orch_sidecar.tools.bench.load.call import Call, ClientHealth, Fate
from orch_sidecar.tools.bench.load.scenario import Slo
from orch_sidecar.tools.bench.results.result import (
    ClientDocument,
    Counts,
    FiguresDocument,
    Goodput,
    SpreadMs,
)
from orch_sidecar.tools.facts.labels.figures import (
    CompletedRequest,
    Figures,
    Spread,
    figures,
    overlap,
    percentile,
    spread,
)
from orch_sidecar.tools.facts.labels.thresholds import CLIENT_LATE_S, CLIENT_LATE_SHARE

# A client later than this did not keep its schedule, and one that is busier or wakes later than
# this adds to every time it measures.
LATE_MS: Final = 1000 * CLIENT_LATE_S
LAG_MS: Final = 20.0
CPU_SHARE: Final = 0.9
# The acceptable share of the window for sending an offline run, and for one pause of the client.
SHARE: Final = CLIENT_LATE_SHARE

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


class Tally:
    """The calls of a run, and the answered ones among them."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self._answered = [call for call in calls if call.served is not None]
        self._calls = calls
        self.served: list[CompletedRequest] = [
            s for call in calls if (s := call.served) is not None
        ]
        self._figures: Figures | None = figures(self.served) if self.served else None

    @property
    def window_s(self) -> float | None:
        """The seconds from the first arrival to the last end; None without an answer."""
        return None if self._figures is None else self._figures.window_s

    @property
    def mean_latency_s(self) -> float | None:
        """The mean seconds of an answer; None without one."""
        return None if self._figures is None else self._figures.latency_s.mean

    def figures(self) -> FiguresDocument | None:
        """Returns throughput and latency; None without an answer."""
        found = self._figures
        if found is None:
            return None
        known = all(call.input_tokens is not None for call in self._answered)
        each = [s.output_tokens / s.latency_s for s in self.served if s.latency_s > 0]
        queued_s = [call.queue_ms / 1000 for call in self._answered if call.queue_ms is not None]
        return FiguresDocument(
            requests=found.requests,
            window_s=round(found.window_s, 6),
            input_tokens=found.input_tokens if known else None,
            output_tokens=found.output_tokens,
            tokens_per_s=round(found.tokens_per_s, 4),
            tokens_per_s_per_stream=round(percentile(each, 50) or 0.0, 4),
            requests_per_s=round(found.requests / found.window_s, 4),
            overlap=overlap(self.served),
            ttft_ms=ms(found.ttft_s),
            tpot_ms=ms(found.tpot_s),
            itl_ms=ms(spread([gap for call in self._answered for gap in call.gaps_s])),
            latency_ms=_ms(found.latency_s),
            queue_ms=ms(spread(queued_s)),
        )

    def goodput(self, slo: Slo) -> Goodput | None:
        """Returns the goodput; None without a bound, or without an answer."""
        if not slo.bounds or self._figures is None:
            return None
        window_s = self._figures.window_s
        kept = [each for each in self.served if slo.kept_by(each)]
        return Goodput(
            requests=len(kept),
            share=round(len(kept) / len(self._calls), 4),
            requests_per_s=round(len(kept) / window_s, 4),
            tokens_per_s=round(sum(each.output_tokens for each in kept) / window_s, 4),
        )

    def client(
        self, host: Mapping[str, Any], client_health: ClientHealth, *, at_once: bool
    ) -> ClientDocument:
        """Returns the client and its health. `at_once`: everything was due at the start."""
        late = spread([late_s for call in self._calls if (late_s := call.late_s) is not None])
        some_s = SHARE * (self.window_s or 0.0)
        most_s = max(LATE_MS / 1000, some_s) if at_once else LATE_MS / 1000
        lag = spread(client_health.lag_s)
        causes = []
        if late is not None and late.p99 > most_s:
            causes.append(f"requests were sent {1000 * late.p99:.1f} ms late (p99)")
        if lag is not None and 1000 * lag.p99 > LAG_MS:
            causes.append(f"its event loop woke {1000 * lag.p99:.1f} ms late (p99)")
        elif lag is not None and lag.most > max(LAG_MS / 1000, some_s):
            causes.append(f"its event loop was blocked for {1000 * lag.most:.1f} ms")
        if client_health.cpu_share > CPU_SHARE:
            causes.append(f"it used {client_health.cpu_share:.0%} of one core")
        return ClientDocument(
            host=dict(host),
            late_ms=ms(late),
            loop_lag_ms=ms(lag),
            cpu_share=round(client_health.cpu_share, 3),
            bottleneck=causes,
        )


def ms(found: Spread | None) -> SpreadMs | None:
    """Converts seconds to milliseconds."""
    return None if found is None else _ms(found)


def _ms(found: Spread) -> SpreadMs:
    names = ("mean", "p50", "p90", "p95", "p99")
    values = {name: round(1000 * getattr(found, name), 4) for name in names}
    early = {name: round(1000 * value, 4) for name, value in found.early.items()}
    return SpreadMs(**values, max=round(1000 * found.most, 4), early=early)
