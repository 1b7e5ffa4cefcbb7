"""Finds contradictions between sidecar and engine about the requests of a scenario.

Pure. Two processes report about each request, and the engine reports tokens, steps and times: no
one of them can be altered, or come from elsewhere, without another that disagrees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from orch_sidecar.tools.facts.labels.objection import Objection, Reason, count_requests
from orch_sidecar.tools.facts.labels.thresholds import CLOCK_RATE, CLOCKS_AGREE_S, ROUNDING_S
from orch_sidecar.tools.facts.tables.row import Label
from orch_sidecar.tools.facts.traces.requests import Request
from orch_sidecar.tools.facts.traces.scenarios import Scenario
from orch_sidecar.tools.facts.traces.sequence import UNCOUNTED_STEPS, EngineSequence

# The shipped profiles: what they are named after.
_PROFILE_LABELS: Final = {
    "home": Label.SINGLE_STREAM,
    "cloud": Label.BATCHED_ONLINE,
    "offline": Label.OFFLINE,
}


def contradictions(scenario: Scenario, served: tuple[Request, ...]) -> Iterator[Objection]:
    """Finds contradictions about the requests that were answered."""
    label, profile = scenario.key.measurement_type, scenario.key.profile
    sequences = scenario.sequences
    labels = sorted({str(each.measurement_type) for each in sequences} - {label})
    profiles = sorted({str(each.profile) for each in sequences} - {str(profile)})
    texts: tuple[tuple[Callable[[Request], bool], str], ...] = (
        (
            lambda each: any(of.measurement_type != label for of in each.sequences),
            f"the sidecar reports {label}, the engine {', '.join(labels)}",
        ),
        (
            lambda each: any(of.profile != profile for of in each.sequences),
            f"the sidecar's profile is {profile}, the engine's {', '.join(profiles)}",
        ),
        *_CHECKS,
    )
    for contradicts, text in texts:
        if count := sum(map(contradicts, served)):
            yield Objection(Reason.CONTRADICTION, f"{count_requests(count)}: {text}")
    named = None if profile is None else _PROFILE_LABELS.get(profile)
    if named is not None and named != label:
        detail = f"the profile {profile} is {named}: a measurement of it cannot be {label}"
        yield Objection(Reason.CONTRADICTION, detail)
    yield from _clocks(served)


def _clocks(served: tuple[Request, ...]) -> Iterator[Objection]:
    """Finds clocks of sidecar and engine that differ."""
    offsets = [
        offset
        for request in served
        for attempt in request.attempts
        for each in attempt.sequences
        if (offset := _offset_ns(each, attempt.start_ns, attempt.end_ns))
    ]
    apart = [offset for offset in offsets if abs(offset) > CLOCKS_AGREE_S * 1e9]
    if apart:
        most = max(apart, key=abs)
        where = "ahead of" if most > 0 else "behind"
        detail = f"the engine's clock is at least {abs(most) / 1e9:.3f} s {where} the sidecar's"
        yield Objection(Reason.CONTRADICTION, f"{len(apart)} of its sequences: {detail}")


def _offset_ns(each: EngineSequence, start_ns: int, end_ns: int) -> int:
    """Returns by how much a sequence ends after an interval, or (negative) starts before it."""
    after, before = each.end_ns - end_ns, each.start_ns - start_ns
    if before < 0 and -before >= after:
        return before
    return max(after, 0)


def _too_many_tokens(request: Request) -> bool:
    return any(
        each.output_tokens
        > (each.counters.engine_steps + UNCOUNTED_STEPS) * each.counters.tokens_per_step
        for each in request.sequences
        if each.counters is not None
    )


def _other_tokens(request: Request) -> bool:
    """Returns whether sidecar and engine generated other numbers of tokens.

    A step of speculative decoding may generate tokens beyond a stop string: vLLM's statistics have
    them, its answers have not.
    """
    if not request.sequences or request.output_tokens is None:
        return False
    surplus = sum(
        each.counters.tokens_per_step - 1
        for each in request.sequences
        if each.counters is not None and each.stopped
    )
    return not 0 <= request.engine_output_tokens - request.output_tokens <= surplus


def _impossible_counts(request: Request) -> bool:
    return any(
        each.steps > each.counters.engine_steps
        or each.steps > each.counters.decode_steps
        or not 0 < each.counters.request_number <= each.counters.requests_total
        or each.counters.tokens_per_step < 1
        for each in request.sequences
        if each.counters is not None
    )


def _other_speculation(request: Request) -> bool:
    return any(
        (each.conditions.speculative == "none") != (each.counters.tokens_per_step == 1)
        for each in request.sequences
        if each.conditions is not None and each.counters is not None
    )


def _impossible_hits(request: Request) -> bool:
    caches = [each.prefix_cache for each in request.sequences if each.prefix_cache is not None]
    return any(not 0 <= at.hits - at.hits_before <= at.queries - at.queries_before for at in caches)


def _too_short(request: Request) -> bool:
    """Returns whether the answer came sooner than the engine had generated it.

    The last event of a stream can be missed where it is cut: that costs a step.
    """
    took_s = (request.end_ns - request.start_ns) / 1e9
    return any(
        took_s < each.inference_s * (1 - CLOCK_RATE) - each.step_s - ROUNDING_S
        or took_s < each.decode_s * (1 - CLOCK_RATE) - each.step_s - ROUNDING_S
        for each in request.sequences
    )


def _tokens_out_of_order(request: Request) -> bool:
    first_ns = request.start_ns if request.first_byte_ns is None else request.first_byte_ns
    closed_ns = request.closed_ns + round(ROUNDING_S * 1e9)
    return not request.start_ns <= first_ns <= request.end_ns <= closed_ns


_CHECKS: Final[tuple[tuple[Callable[[Request], bool], str], ...]] = (
    (
        lambda each: (
            bool(each.sequences)
            and not each.parts  # one prompt may be that of several parts
            and each.input_tokens not in (None, each.engine_input_tokens)
        ),
        "sidecar and engine report different input tokens",
    ),
    (_other_tokens, "sidecar and engine report different output tokens"),
    (lambda each: each.closed_ns < each.start_ns, "the end is before the start"),
    (
        lambda each: each.closed_ns >= each.start_ns and _tokens_out_of_order(each),
        "the first token is after the last one, or one of them outside of the request",
    ),
    (
        lambda each: len(each.sequences) > each.requested_sequences,
        "more sequences in the engine than were requested",
    ),
    (_too_many_tokens, "more tokens than the engine's steps can have generated"),
    (_impossible_counts, "counts of the engine that contradict each other"),
    (
        _other_speculation,
        "tokens per step that the engine's speculative decoding does not generate",
    ),
    (_impossible_hits, "more hits in the prefix cache than prompt tokens looked up in it"),
    (_too_short, "the answer took less time than the engine took to generate it"),
)
