"""Figures of a turn, the table of a scenario, and the verdicts. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from tests.benchmarks.policy import summary
from tests.benchmarks.policy.call import PREDICTED_START, Answer
from tests.benchmarks.policy.record import Record, at_most, shown, table, verdict
from tests.benchmarks.policy.summary import PREDICTED_FROM_MS, ClassSummary
from tests.benchmarks.traffic.replay import Replayed
from tests.benchmarks.traffic.scenarios import Kind
from tests.benchmarks.traffic.ways import DIRECT, SIDECAR
from vllm_plugin.contracts.profile import ServiceClass

INTERACTIVE, BULK = ServiceClass.INTERACTIVE, ServiceClass.BULK

# Of the slots' time, and the share of it that a short run must show.
GUARANTEED: Final = 0.1
HEAD: Final = (
    "way", "in SLO", "goodput/s", "answered", "TTFT p50", "p95 ms", "tokens/s", "bulk tokens",
    "bulk slots", "prediction off by", "bias", "of bulk", "bias", "refused",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Turn:
    """One way in one round: its figures."""

    interactive: ClassSummary
    tokens_per_s: float
    bulk_tokens_share: float
    bulk_slots_share: float
    errors: tuple[float, ...]  # relative, of predicted starts, with their sign
    bulk_errors: tuple[float, ...]  # those of bulk requests

    def document(self) -> dict[str, Any]:
        own = self.interactive
        return {
            "arrived": own.arrived, "answered": own.answered, "within_slo": own.within_slo,
            "goodput_per_s": own.goodput, "refused": own.refused, "cut": own.cut,
            "ttft_p50_ms": None if own.ttft_p50 is None else own.ttft_p50.ms,
            "ttft_p95_ms": None if own.ttft_p95 is None else own.ttft_p95.ms,
            "tokens_per_s": self.tokens_per_s, "bulk_tokens_share": self.bulk_tokens_share,
            "bulk_slots_share": self.bulk_slots_share, "prediction_errors": list(self.errors),
            "bulk_prediction_errors": list(self.bulk_errors),
        }  # fmt: skip


def turn_of(found: Replayed, slots: int, slo_ms: float) -> Turn:
    """Computes the figures of the requests that were due in the window."""
    from_s, until_s = found.before.at_s, found.after.at_s
    own = summary.of_class(found.answers, INTERACTIVE)
    tokens = found.after.tokens - found.before.tokens
    return Turn(
        summary.summarize(summary.counted(own, from_s, until_s), found.seconds, slo_ms),
        found.after.counters.since(found.before.counters).tokens_per_s,
        tokens[BULK] / max(1, tokens.total()),
        _slots_share(summary.of_class(found.answers, BULK), from_s, until_s, slots),
        tuple(_errors(found.answers)),
        tuple(_errors(summary.of_class(found.answers, BULK))),
    )


def _slots_share(answers: Iterable[Answer], from_s: float, until_s: float, slots: int) -> float:
    """The share of the slots' time in the window, from the end of its wait in the sidecar."""
    taken_s = 0.0
    for answer in answers:
        if answer.sent_s is None or answer.first_s is None:
            continue
        began_s = answer.sent_s + (answer.queue_ms or 0.0) / 1000
        ended_s = answer.last_s if answer.cut_s is None else answer.cut_s
        taken_s += max(0.0, min(until_s, ended_s or until_s) - max(from_s, began_s))
    return taken_s / (slots * (until_s - from_s))


def _errors(answers: Iterable[Answer]) -> Iterable[float]:
    for answer in answers:
        predicted, actual = answer.number(PREDICTED_START), answer.queue_ms
        if answer.status != 200 or predicted is None or actual is None:
            continue
        if actual > PREDICTED_FROM_MS:
            yield (predicted - actual) / actual


def report(kind: Kind, turns: dict[str, list[Turn]], record: Record) -> None:
    """Prints the table of a scenario and judges it; medians of the rounds."""
    rows = [_row(name, own) for name, own in turns.items() if own]
    print(f"\n{kind.name}")
    print(table(HEAD, rows), flush=True)
    record.results[kind.name] = {
        name: [turn.document() for turn in own] for name, own in turns.items()
    }
    if SIDECAR in turns and DIRECT in turns:
        _judge(kind, turns, record)


def _middle(own: Sequence[Turn], figure: str) -> float | None:
    values = [turn.document()[figure] for turn in own]
    known = [each for each in values if each is not None]
    return median(known) if known else None


def _row(name: str, own: Sequence[Turn]) -> list[str]:
    def percent(figure: str) -> str:
        value = _middle(own, figure)
        return "-" if value is None else f"{100 * value:.0f} %"

    errors = [error for turn in own for error in turn.errors]
    bulk_errors = [error for turn in own for error in turn.bulk_errors]
    refused: dict[str, int] = {}
    for turn in own:
        for code, count in turn.interactive.refused.items():
            refused[code] = refused.get(code, 0) + count
    arrived, answered = _middle(own, "arrived"), _middle(own, "answered")
    return [
        name,
        percent("within_slo"),
        shown(_middle(own, "goodput_per_s")),
        f"{answered:.0f} of {arrived:.0f}",
        shown(_middle(own, "ttft_p50_ms"), ".0f"),
        shown(_middle(own, "ttft_p95_ms"), ".0f"),
        shown(_middle(own, "tokens_per_s"), ".0f"),
        percent("bulk_tokens_share"),
        percent("bulk_slots_share") if name == SIDECAR else "-",
        *_off_by(errors),
        *_off_by(bulk_errors),
        ", ".join(f"{code} {count}" for code, count in sorted(refused.items())) or "-",
    ]


def _off_by(errors: Sequence[float]) -> tuple[str, str]:
    """The median of predicted starts' errors, and their bias."""
    if not errors:
        return "-", "-"
    off = f"{100 * median(map(abs, errors)):.0f} % of {len(errors)}"
    return off, f"{100 * median(errors):+.0f} %"


def _judge(kind: Kind, turns: dict[str, list[Turn]], record: Record) -> None:
    mine = turns[SIDECAR]

    def ratio(other: str, figure: str) -> float | None:
        pairs = zip(mine, turns[other], strict=True)
        values = [(a.document()[figure], b.document()[figure]) for a, b in pairs]
        known = [a / b for a, b in values if a is not None and b]
        return median(known) if known else None

    name = kind.name
    tokens = ratio(DIRECT, "tokens_per_s")
    if kind.load == 0.5 and not kind.bulk:
        record.judge(verdict(f"{name}: tokens/s over direct", tokens, 0.99, ".3f"))
        theirs, own = _middle(turns[DIRECT], "ttft_p95_ms"), _middle(mine, "ttft_p95_ms")
        most = None if theirs is None else 1.05 * theirs + 2
        if most is not None:
            record.judge(at_most(f"{name}: TTFT p95, ms", own, most, ".0f"))
        return
    if not kind.bulk:  # what would be late is refused, and its tokens are missing
        print(f"{name}: tokens/s over direct: {shown(tokens, '.3f')}, no target", flush=True)
        return
    record.judge(verdict(f"{name}: tokens/s over direct", tokens, 0.97, ".3f"))
    share = _middle(mine, "bulk_slots_share")
    record.judge(verdict(f"{name}: share of the slots' time of bulk", share, GUARANTEED, ".3f"))
    if kind.load == 2.0:
        best = max(_middle(own, "goodput_per_s") or 0.0 for n, own in turns.items() if n != SIDECAR)
        good = _middle(mine, "goodput_per_s") or 0.0
        over = good / best if best else float("inf") if good else None
        record.judge(verdict(f"{name}: goodput over the best of the others", over, 3.0))
        errors = [error for turn in mine for error in turn.errors]
        off = 100 * median(map(abs, errors)) if errors else None
        bias = abs(100 * median(errors)) if errors else None
        record.judge(at_most(f"{name}: predicted start off by, %", off, 20, ".0f"))
        record.judge(at_most(f"{name}: bias of predicted starts, %", bias, 10, ".0f"))
