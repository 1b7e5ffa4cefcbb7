"""Holds the requests of a client against those that its engine signed.

Pure. Nobody signed which answer was which finished request, but every answer was one. So, whatever
the assignment, and in each group of requests with the same numbers of tokens:

- tokens: each answer has the prompt and generated tokens of a request of its own;
- order: the k-th request came to the engine after the k-th was sent, and the k-th first token and
  the k-th end were seen after the engine's k-th. The clocks differ by one number, for all of them;
- lengths: the k-th shortest TTFT and latency are no less than the engine's k-th shortest.

What a client may have seen of an answer earlier than the engine's last token is its last step, as a
token without text at the end makes no event.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, pairwise
from typing import Final, NamedTuple, TypeVar

from orch_sidecar.tools.facts.labels import intervals
from orch_sidecar.tools.facts.labels.figures import CompletedRequest, percentile
from orch_sidecar.tools.facts.labels.recorded import Call, RecordedRun
from orch_sidecar.tools.facts.labels.thresholds import (
    CLIENT_LATE_S,
    CLIENT_LATE_SHARE,
    CLOCK_RATE,
    LACKING,
    LAST_STEP_TOKENS,
    NOTED_LATE_S,
    ROUNDING_S,
    UNLIKELY,
)
from orch_sidecar.tools.facts.signing.proof import Proof, SignedRequest
from orch_sidecar.tools.facts.tables.notes import Arrivals

# Prompt and generated ones.
_Tokens = tuple[int, int]
_Any = TypeVar("_Any")

_UNSCHEDULED: Final = (Arrivals.ONE_BY_ONE, Arrivals.CLOSED_LOOP)


def impossible_times(run: RecordedRun, proof: Proof) -> Iterator[str]:
    """Yields what of a client's requests cannot be, beside what the engine signed of them."""
    yield from _arrivals(run, proof)
    answered = [call for call in run.calls if call.served is not None]
    missing = Counter(map(_tokens_of, answered)) - Counter(map(_tokens, proof.requests))
    for (prompt, generated), count in sorted(missing.items())[:1]:
        yield (
            f"{count} more answers of {prompt} prompt and {generated} generated tokens were "
            "recorded than the engine finished"
        )
    if missing:
        return
    slack_s = proof.adjusted_s + ROUNDING_S + NOTED_LATE_S + CLOCK_RATE * proof.window_s
    groups = [(run.calls, answered, proof.requests)]
    if len(answered) == len(proof.requests):
        # Of a failed request nobody knows which of the engine's it was: no group is whole then.
        calls, requests = _grouped(answered, _tokens_of), _grouped(proof.requests, _tokens)
        groups += [(calls[tokens], calls[tokens], requests[tokens]) for tokens in requests]
    problems = (problem for group in groups for problem in _impossible(*group, slack_s))
    yield from islice(problems, 1)


def _grouped(each: Iterable[_Any], tokens: Callable[[_Any], _Tokens]) -> dict[_Tokens, list[_Any]]:
    found: dict[_Tokens, list[_Any]] = defaultdict(list)
    for one in each:
        found[tokens(one)].append(one)
    return found


def _tokens(request: SignedRequest) -> _Tokens:
    return request.prompt_tokens, request.generated_tokens


def _tokens_of(call: Call) -> _Tokens:
    return call.input_tokens or 0, call.output_tokens or 0


def _first_s(request: SignedRequest) -> float:
    """Returns the least time to the first token, in seconds since it arrived in the engine."""
    return min(leaf.queued_s + leaf.prefill_s for leaf in request.leaves)


def _last_s(request: SignedRequest) -> float:
    """Returns the least time to the last token, in seconds since it arrived in the engine."""

    def share(steps: int) -> float:
        return max(0.0, 1 - LAST_STEP_TOKENS / steps) if steps > 0 else 0.0

    return max(
        leaf.queued_s + leaf.prefill_s + share(leaf.generated_tokens - 1) * leaf.decode_s
        for leaf in request.leaves
    )


class _Moment(NamedTuple):
    """What a client sees of an answer: when, after how long, and the least that the engine took."""

    text: str
    name: str
    at_s: Callable[[Call], float | None]
    took_s: Callable[[CompletedRequest], float | None]
    least_s: Callable[[SignedRequest], float]


_MOMENTS: Final = (
    _Moment("began to come", "TTFT", lambda c: c.first_s, lambda each: each.ttft_s, _first_s),
    _Moment("ended", "latency", lambda c: c.ended_s, lambda each: each.latency_s, _last_s),
)


def _impossible(
    sent: Sequence[Call],
    answered: Sequence[Call],
    requests: Sequence[SignedRequest],
    slack_s: float,
) -> Iterator[str]:
    """Yields why no difference of the clocks explains the order of times, and too short ones."""
    came = sorted(each.arrived_s for each in requests)
    went = sorted(call.sent_s for call in sent if call.sent_s is not None)
    if len(went) < len(came):
        yield f"the engine finished {len(came)} requests, of which {len(went)} were sent"
        return
    latest = min((there - here for there, here in zip(came, went, strict=False)), default=0.0)
    for moment in _MOMENTS:
        here = sorted(at for call in answered if (at := moment.at_s(call)) is not None)
        there = sorted(each.arrived_s + moment.least_s(each) for each in requests)
        pairs = zip(there, here, strict=False)
        early_s = max((engine_s - client_s for engine_s, client_s in pairs), default=0.0) - latest
        if len(here) == len(answered) and here and early_s > slack_s:
            yield (
                f"answers {moment.text} {early_s:.3f} s before the engine had made them, wherever "
                "its clock stood when they were sent"
            )
    completed = [served for call in answered if (served := call.served) is not None]
    for moment in _MOMENTS:
        took = sorted(s for each in completed if (s := moment.took_s(each)) is not None)
        for client_s, engine_s in zip(took, sorted(map(moment.least_s, requests)), strict=False):
            if client_s < engine_s * (1 - CLOCK_RATE) - ROUNDING_S:
                yield f"a {moment.name} is {client_s:.6g} s, the engine alone took {engine_s:.6g} s"


def _arrivals(run: RecordedRun, proof: Proof) -> Iterator[str]:
    """Compares the load that is stated with when requests were due, sent and in flight."""
    kind, scheduled = run.scenario.arrivals, [call for call in run.calls if call.due_s is not None]
    beside = [call for call in run.calls if call.due_s is None]
    clients = run.scenario.clients
    if run.scenario.trace is not None:
        clients = run.scenario.trace.bulk_clients
    elif kind in _UNSCHEDULED and scheduled:
        yield f"arrivals is {kind}, the client's requests had a schedule"
    if kind not in _UNSCHEDULED and not scheduled:
        yield f"arrivals is {kind}, the client's requests had no schedule"
    if beside and clients is not None:
        yield from _loop(beside, clients, None if scheduled else proof)
    times = ((call.due_s, call.sent_s) for call in scheduled)
    late = [sent_s - due_s for due_s, sent_s in times if due_s is not None and sent_s is not None]
    late_s, most_s = percentile(late, 99) or 0.0, float(CLIENT_LATE_S)
    if kind is Arrivals.AT_ONCE:
        most_s = max(most_s, CLIENT_LATE_SHARE * proof.window_s)
    if late_s > most_s + ROUNDING_S and not run.client.bottleneck:
        yield f"requests were sent {late_s:.3f} s late (p99), and no client_bottleneck is noted"
    rate = run.scenario.rate_per_s
    if rate is not None and kind in (Arrivals.CONSTANT, Arrivals.POISSON):
        yield from _rate(kind, rate, sorted(each.due_s or 0.0 for each in scheduled))


def _loop(calls: Sequence[Call], clients: int, proof: Proof | None) -> Iterator[str]:
    """Compares a closed loop with its clients: each has a request in flight, and no more."""
    known = [each for call in calls if (each := call.in_flight) is not None]
    inside = [] if proof is None else [each.in_flight for each in proof.requests]
    # An end that was noted late is no overlap.
    inside = [each._replace(end=max(each.start, each.end - NOTED_LATE_S)) for each in inside]
    both = (*intervals.pieces(known), *intervals.pieces(inside))
    at_once = max((piece.intervals for piece in both), default=0)
    if at_once > clients:
        yield f"at_once is {clients}, {at_once} requests were in flight at once"
    lacking = intervals.missing(known, clients) if len(known) > clients else 0.0
    if lacking > LACKING:
        yield f"at_once is {clients}, of which {lacking:.0%} had no request in flight"


def _rate(kind: Arrivals, rate: float, due_s: Sequence[float]) -> Iterator[str]:
    gaps = [later - earlier for earlier, later in pairwise(due_s)]
    total, count = sum(gaps), len(gaps)
    if kind is Arrivals.CONSTANT:
        wrong = any(abs(gap - 1 / rate) > ROUNDING_S + CLOCK_RATE / rate for gap in gaps)
    else:
        wrong = count > 0 and _log_chance(total * rate, count) < math.log(UNLIKELY)
    if wrong:
        yield f"rate_per_s is {rate:g}: {count + 1} requests were due within {total:.6g} s"


def _log_chance(total: float, gaps: int) -> float:
    """Returns Chernoff's bound of the chance, as a logarithm, that so many exponential gaps of mean
    1 are together as far from their expectation as `total`."""
    return gaps - total + gaps * math.log(total / gaps) if total > 0 else -math.inf
