"""Formats the table and the verdicts of `mixed`: policies by class."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import chain
from statistics import median
from typing import Final

from tests.benchmarks.policy import summary
from tests.benchmarks.policy.call import ROW, Answer
from tests.benchmarks.policy.load import Loaded
from tests.benchmarks.policy.record import Record, at_most, shown, table, verdict
from tests.benchmarks.policy.rig import Counters
from tests.benchmarks.policy.summary import ClassSummary
from vllm_plugin.contracts.profile import ServiceClass

INTERACTIVE, BULK = ServiceClass.INTERACTIVE, ServiceClass.BULK

POLICY, FIFO, DIRECT, PRIORITY = "policy", "fifo", "direct", "direct-priority"


# A refusal for a wait that was too long reaches a client on a busy machine a moment later.
WAIT: Final = 1.02
# A median of fewer says nothing.
PREDICTIONS: Final = 10


@dataclass(frozen=True, slots=True)
class Turn:
    """One policy in one round."""

    loaded: Loaded[Counters]
    answers: list[Answer]  # of those that were due in the window

    @property
    def tokens_per_s(self) -> float:
        return self.loaded.after.since(self.loaded.before).tokens_per_s

    def of(self, service_class: ServiceClass, slo_ms: float | None) -> ClassSummary:
        answers = summary.of_class(self.answers, service_class)
        return summary.summarize(answers, self.loaded.seconds, slo_ms)


def report(turns: dict[str, list[Turn]], slo_ms: float, max_wait_s: float, record: Record) -> None:
    """Prints the table and the verdicts, and keeps all of it, request by request."""
    rows = []
    pooled: dict[tuple[str, ServiceClass], ClassSummary] = {}
    tokens: dict[str, list[float]] = {}
    for name, own in turns.items():
        tokens[name] = [turn.tokens_per_s for turn in own]
        for service_class in (INTERACTIVE, BULK):
            limit = slo_ms if service_class is INTERACTIVE else None
            found = _pooled(own, service_class, limit)
            pooled[name, service_class] = found
            rows.append(_row(name, service_class, found, median(tokens[name])))
    print()
    print(table(_HEAD, rows))
    print()
    record.results["request_columns"] = ROW
    record.results["policies"] = {
        name: {
            "tokens_per_s": tokens[name],
            "requests": [[answer.row() for answer in turn.answers] for turn in own],
            "generator_late_ms": summary.lateness_ms(chain(*(t.answers for t in own))),
            **{str(c): asdict(pooled[name, c]) for c in (INTERACTIVE, BULK)},
            "rounds": [
                {
                    str(c): asdict(t.of(c, slo_ms if c is INTERACTIVE else None))
                    for c in ServiceClass
                }
                for t in own
            ],
        }
        for name, own in turns.items()
    }
    if POLICY in turns:
        _judge(pooled, tokens, slo_ms, max_wait_s, record)


_HEAD: Final = (
    "policy, class", "arrived", "answered", "cut", "TTFT p50", "p95 ms", "in SLO", "goodput/s",
    "tok/s", "longest wait s", "prediction off by", "refused",
)  # fmt: skip


def _row(name: str, service_class: ServiceClass, found: ClassSummary, tokens: float) -> list[str]:
    error = found.prediction_error
    return [
        f"{name}, {service_class}",
        str(found.arrived),
        str(found.answered),
        str(found.cut),
        shown(found.ttft_p50),
        shown(found.ttft_p95),
        "-" if found.within_slo is None else f"{100 * found.within_slo:.0f} %",
        shown(found.goodput),
        f"{tokens:.0f}" if service_class is INTERACTIVE else "",
        shown(found.longest_wait_s, ".1f"),
        "-" if error is None else f"{100 * error:.0f} % of {found.predictions}",
        ", ".join(f"{code} {count}" for code, count in sorted(found.refused.items())) or "-",
    ]


def _pooled(own: list[Turn], service_class: ServiceClass, slo_ms: float | None) -> ClassSummary:
    """All rounds as one."""
    answers = [a for turn in own for a in summary.of_class(turn.answers, service_class)]
    seconds = sum(turn.loaded.seconds for turn in own)
    return summary.summarize(answers, seconds, slo_ms)


def _judge(
    pooled: dict[tuple[str, ServiceClass], ClassSummary],
    tokens: dict[str, list[float]],
    slo_ms: float,
    max_wait_s: float,
    record: Record,
) -> None:
    mine, bulk = pooled[POLICY, INTERACTIVE], pooled[POLICY, BULK]
    p95 = None if mine.ttft_p95 is None else mine.ttft_p95.ms
    record.judge(at_most("interactive TTFT p95, ms", p95, slo_ms, ".0f"))
    for rival in (DIRECT, PRIORITY):
        if rival not in tokens:
            continue
        theirs = pooled[rival, INTERACTIVE].goodput
        ratio = mine.goodput / theirs if theirs else float("inf") if mine.goodput else None
        record.judge(verdict(f"interactive goodput over {rival}", ratio, 2.0))
        ratios = [a / b for a, b in zip(tokens[POLICY], tokens[rival], strict=True)]
        record.judge(verdict(f"tokens/s over {rival}", median(ratios), 0.95, ".3f"))
    record.judge(
        at_most("longest wait of a bulk request, s", bulk.longest_wait_s, WAIT * max_wait_s, ".1f")
    )
    for service_class in (INTERACTIVE, BULK):
        found = pooled[POLICY, service_class]
        known = found.prediction_error if found.predictions >= PREDICTIONS else None
        percent = None if known is None else 100 * known
        record.judge(at_most(f"error of predicted starts, {service_class}, %", percent, 30, ".0f"))
