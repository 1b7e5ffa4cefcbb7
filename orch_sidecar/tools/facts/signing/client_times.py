"""Holds the times that only a client measured against those that its engine signed.

Pure. Which answer was which sequence nobody signed, so the bounds are of sorted values: if every
answer took at least its engine's time, then the k-th shortest took at least the k-th shortest
time of the engine. What a client may have seen of a request earlier than the engine's last token
is its last step, as a token without text at the end makes no event.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from orch_sidecar.tools.facts.labels.figures import percentile
from orch_sidecar.tools.facts.signing.proof import Proof
from orch_sidecar.tools.facts.tables.note_forms import PERCENTILES, TIMES, time_note
from orch_sidecar.tools.facts.tables.notes import LATENCY_OF, Arrivals, arrivals_of
from vllm_plugin.contracts.statement import Leaf

# Between the rates of two monotonic clocks, and what rounding a note to a microsecond may take.
CLOCK_SHARE: Final = 0.001
_ROUNDING_MS: Final = 0.002
# The tokens of a last step: one, or with speculative decoding a few; or one step as slow as these.
_LAST_STEP_TOKENS: Final = 8
# Arrivals that an honest run has more rarely than this are not believed.
UNLIKELY: Final = 1e-9


@dataclass(frozen=True, slots=True)
class _Request:
    """A finished request in the engine: seconds since it arrived there, but `arrived_s`."""

    arrived_s: float
    first_token_s: float
    last_token_s: float
    tokens: int  # of its longest sequence


@dataclass(frozen=True, slots=True)
class _Longest:
    """The largest noted percentile of the client's latency or TTFT: at most `more` of its
    requests took longer than `seconds`."""

    seconds: float
    more: int


def time_contradictions(notes: Mapping[str, str], proof: Proof) -> Iterator[str]:
    """Yields where latencies or a rate of arrivals are impossible beside what the engine signed.

    Raises ValueError if a note is not a number.
    """
    requests = [
        _Request(
            each.arrived_s,
            min(leaf.queued_s + leaf.prefill_s for leaf in each.leaves),
            max(map(_last_token_s, each.leaves)),
            max(leaf.generated_tokens for leaf in each.leaves),
        )
        for each in proof.requests
    ]
    answered = int(notes.get("requests", "0"))
    if not 0 < answered <= len(requests):
        return  # which `recompute` says
    yield from _latencies(notes, requests, answered)
    yield from _rate(notes, requests, answered, proof.adjusted_s)


def _last_token_s(leaf: Leaf) -> float:
    steps = leaf.generated_tokens - 1
    share = max(0.0, 1 - _LAST_STEP_TOKENS / steps) if steps > 0 else 0.0
    return leaf.queued_s + leaf.prefill_s + share * leaf.decode_s


def _latencies(
    notes: Mapping[str, str], requests: Sequence[_Request], answered: int
) -> Iterator[str]:
    least = {
        "ttft": sorted(each.first_token_s for each in requests)[:answered],
        "latency": sorted(each.last_token_s for each in requests)[:answered],
        "tpot": _least_tpot_s(notes, requests, answered),
    }
    if LATENCY_OF in notes:  # of some of them, nobody signed which
        least = {name: values[:1] for name, values in least.items()}
    for name in TIMES:
        for rank in PERCENTILES:
            note, bound_s = time_note(name, rank), percentile(least[name], rank)
            if note not in notes or bound_s is None:
                continue
            bound_ms = bound_s * 1000 * (1 - CLOCK_SHARE)
            if float(notes[note]) < bound_ms - _ROUNDING_MS:
                yield f"{note} is {notes[note]}, the engine alone took {bound_ms:.6g}"


def _least_tpot_s(
    notes: Mapping[str, str], requests: Sequence[_Request], answered: int
) -> list[float]:
    """Returns the least TPOT of each answer, ascending. A first token may have come late to the
    client, and the others at once, but no later than its TTFT says."""
    ttft = _longest(notes, "ttft", answered)
    if ttft is None:
        return []
    least = sorted(
        max(0.0, each.last_token_s - ttft.seconds) / (each.tokens - 1)
        for each in requests
        if each.tokens > 1
    )[:answered]
    return sorted([0.0] * min(ttft.more, len(least)) + least[: -ttft.more])


def _longest(notes: Mapping[str, str], name: str, answered: int) -> _Longest | None:
    for rank in reversed(PERCENTILES):
        if (note := time_note(name, rank)) in notes:
            more = math.ceil((answered - 1) * (1 - rank / 100)) + 1
            return _Longest(float(notes[note]) / 1000, more)
    return None


def _rate(
    notes: Mapping[str, str], requests: Sequence[_Request], answered: int, adjusted_s: float
) -> Iterator[str]:
    """A request came to the engine after it was due, and by no more than its latency.

    `adjusted_s`: by how much the engine's wall clock was adjusted.
    """
    latency = _longest(notes, "latency", answered)
    rate = notes.get("rate_per_s")
    scheduled = arrivals_of(notes) in (Arrivals.CONSTANT, Arrivals.POISSON)
    if rate is None or latency is None or not scheduled or LATENCY_OF in notes:
        return
    arrived_s = sorted(each.arrived_s for each in requests)
    sent = answered + sum(int(notes.get(name, "0")) for name in ("failed", "refused"))
    late_s = arrived_s[max(0, answered - 1 - latency.more)] - arrived_s[0]
    late_s -= latency.seconds + adjusted_s
    if _too_long(late_s * float(rate), sent - 1):
        yield f"rate_per_s is {rate}: {sent} requests came to the engine in {late_s:.6g} s or more"
    span_s = arrived_s[-1] - arrived_s[0] + latency.seconds + adjusted_s
    if _too_short(span_s * float(rate), answered - latency.more - 1):
        yield f"rate_per_s is {rate}: {answered} requests came to the engine in {span_s:.6g} s"


def _too_long(expected: float, gaps: int) -> bool:
    """Whether so many exponential gaps of mean 1 are together hardly ever as long."""
    return expected > gaps and _log_chance(expected, gaps) < math.log(UNLIKELY)


def _too_short(expected: float, gaps: int) -> bool:
    """Whether so many exponential gaps of mean 1 are together hardly ever as short."""
    return 0 < expected < gaps and _log_chance(expected, gaps) < math.log(UNLIKELY)


def _log_chance(total: float, gaps: int) -> float:
    """Returns Chernoff's bound of the chance of a sum at or beyond `total`, as a logarithm."""
    return gaps - total + (gaps * math.log(total / gaps) if gaps > 0 else 0.0)
