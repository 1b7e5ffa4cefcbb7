"""Labels that were not earned: recorded scenarios, altered so that their label is false.

Here: the load, the label and the engine. `spans` has traffic that is not traced, and figures.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from orch_sidecar.tools.facts.traces.spans import Span
from tests.orch_sidecar.tools.facts.cheats import Cheat, Gate
from tests.orch_sidecar.tools.facts.cheats.alterations import (
    ATTEMPT,
    SEQUENCE,
    SERVER,
    WAIT,
    Alteration,
    Spans,
    both,
    changed,
    dropped,
    kind,
    moved,
    one_after_another,
    recounted,
    requests,
    said,
    set_to,
)


def case(name: str, recording: str, alter: Alteration, reason: str) -> Cheat:
    """A recorded scenario with altered spans, and the reason that is among the objections."""
    return Cheat(
        f"{name} ({recording})", {Gate.JUDGE: f"{reason}: "}, partial(said, recording, alter)
    )


def relabelled(label: str, **more: str) -> Alteration:
    return set_to(None, {"measurement_type": label, **{f"orch.{k}": v for k, v in more.items()}})


def nested(number: int, *, below: int) -> Alteration:
    """Copies a sequence to below the attempt of another request."""

    def alter(spans: Spans) -> Spans:
        traces = requests(spans)
        [copy] = [s for s in spans if s.trace_id == traces[number] and kind(s) == SEQUENCE]
        [attempt] = [s for s in spans if s.trace_id == traces[below] and kind(s) == ATTEMPT]
        trace_id, parent_id = attempt.trace_id, attempt.span_id
        return [*spans, replace(copy, trace_id=trace_id, parent_id=parent_id, span_id="f" * 16)]

    return alter


def waited_for_a_second(span: Span) -> Span:
    """One that began so much earlier."""
    return replace(span, start_ns=span.start_ns - 10**9)


LOAD = [
    case("offline from a trickle", "offline", one_after_another(12, 2), "trickle"),
    case("a trickle's batch", "offline", one_after_another(12, 2), "batch_not_full"),
    case(
        "a trickle whose spans claim a full batch",
        "offline",
        both(one_after_another(12, 2), set_to(SEQUENCE, {"orch.batch_size.max": 8})),
        "trickle",
    ),
    case(
        "offline whose last request came late",
        "offline",
        both(moved(1.0, only=[5]), recounted),
        "trickle",
    ),
    case(
        "offline requests that arrived at once, whose bodies came one after another",
        "offline",
        both(
            *(both(moved(0.2 * n, ATTEMPT, [n]), moved(0.2 * n, SEQUENCE, [n])) for n in range(6)),
            changed(SERVER, lambda span: replace(span, end_ns=span.end_ns + 10**9)),
            set_to(SEQUENCE, {"orch.batch_size.max": 2}),
            recounted,
        ),
        "batch_not_full",
    ),
    case(
        "offline whose batch was smaller than slots and work",
        "offline",
        set_to(SEQUENCE, {"orch.batch_size.max": 5}),
        "batch_not_full",
    ),
    case(
        "requests for two sequences, one after another",
        "cloud",
        both(one_after_another(6, 0), set_to(SEQUENCE, {"orch.batch_size.max": 2})),
        "one_by_one",
    ),
    case(
        "concurrency 1 on an engine that can batch",
        "cloud",
        one_after_another(6, 0),
        "never_batched",
    ),
    case(
        "a request of no time that waited",
        "home",
        changed(SERVER, lambda span: replace(span, start_ns=0, end_ns=0), [1]),
        "other_traffic",
    ),
    case("thirty alone and a pair", "cloud", one_after_another(30, 2), "mostly_alone"),
    case(
        "requests for four sequences one after another, and a pair",
        "cloud",
        both(one_after_another(6, 2), set_to(SEQUENCE, {"orch.batch_size.max": 4})),
        "mostly_alone",
    ),
    case(
        "requests for sixteen sequences one after another, and two at once",
        "offline",
        both(one_after_another(6, 2), set_to(SEQUENCE, {"orch.batch_size.max": 8})),
        "mostly_alone",
    ),
    case(
        "a slot that somebody else had, who left no span",
        "home",
        both(*(changed(name, waited_for_a_second, [0]) for name in (SERVER, WAIT))),
        "other_traffic",
    ),
    case(
        "no step with two sequences",
        "cloud",
        set_to(SEQUENCE, {"orch.batch_size.max": 1, "orch.batch_size.mean": 1.0}),
        "never_batched",
    ),
    case(
        "a batch above one as single_stream",
        "home",
        set_to(SEQUENCE, {"orch.batch_size.max": 2}, [1]),
        "batch_above_one",
    ),
    case(
        "single_stream with 8 slots",
        "home",
        set_to(SEQUENCE, {"orch.slots_total": 8}),
        "wrong_slots",
    ),
    case("cloud with one slot", "cloud", set_to(SEQUENCE, {"orch.slots_total": 1}), "wrong_slots"),
    case(
        "interactive requests as offline",
        "offline",
        set_to(SERVER, {"orch.class": "interactive"}, [2]),
        "online_traffic",
    ),
]

LABELS = [
    case("home labelled batched_online", "home", relabelled("batched_online"), "never_batched"),
    case("home labelled offline", "home", relabelled("offline"), "wrong_slots"),
    case("cloud labelled single_stream", "cloud", relabelled("single_stream"), "batch_above_one"),
    case("cloud labelled offline", "cloud", relabelled("offline"), "contradiction"),
    case(
        "cloud labelled offline, its profile too, with interactive requests",
        "cloud",
        relabelled("offline", profile="offline"),
        "online_traffic",
    ),
    case(
        "a label forged by the sidecar alone",
        "cloud",
        set_to(SERVER, {"measurement_type": "offline"}),
        "contradiction",
    ),
    case(
        "a label forged by the engine alone",
        "cloud",
        set_to(SEQUENCE, {"measurement_type": "single_stream"}, [3]),
        "contradiction",
    ),
    case("a label that nothing measures", "cloud", relabelled("aggregate"), "unknown_label"),
    case(
        "single_stream with profile=cloud",
        "home",
        relabelled("single_stream", profile="cloud"),
        "contradiction",
    ),
    case(
        "a profile that the engine does not run",
        "home",
        set_to(SERVER, {"orch.profile": "cloud"}),
        "contradiction",
    ),
]

ENGINE = [
    case(
        "an engine that was restarted",
        "cloud",
        set_to(SEQUENCE, {"orch.epoch": "another"}, [4, 5]),
        "engine_changed",
    ),
    case("an engine clock 100 s behind", "home", moved(-100, SEQUENCE), "contradiction"),
    case("an engine clock 2 s ahead", "cloud", moved(2, SEQUENCE), "contradiction"),
    case(
        "engine spans that were sampled out", "cloud", dropped(SEQUENCE, [1]), "engine_not_traced"
    ),
    case("no engine span at all", "home", dropped(SEQUENCE), "engine_not_traced"),
    case("a server span that is not there yet", "home", dropped(SERVER, [2]), "not_ended"),
    case(
        "a request without the sidecar's engine span",
        "home",
        dropped(ATTEMPT, [2]),
        "engine_not_traced",
    ),
    case(
        "a sequence of another below a request's span",
        "home",
        nested(2, below=0),
        "contradiction",
    ),
    case("a sequence that is there twice", "home", nested(1, below=1), "contradiction"),
    case(
        "requests of an engine that was killed",
        "cloud",
        both(
            set_to(SERVER, {"orch.outcome": "engine_failed"}),
            set_to(ATTEMPT, {"orch.outcome": "engine_failed"}),
        ),
        "nothing_served",
    ),
    case(
        "speculative decoding in half of a run",
        "cloud",
        set_to(SEQUENCE, {"orch.speculative": "ngram:3", "orch.tokens_per_step": 4}, [3, 4, 5]),
        "other_traffic",
    ),
    case(
        "speculative decoding that is denied",
        "cloud",
        set_to(SEQUENCE, {"orch.tokens_per_step": 4}),
        "contradiction",
    ),
    case(
        "conditions that nobody states",
        "cloud",
        set_to(SEQUENCE, {"orch.quantization": ""}),
        "not_counted",
    ),
]

CHEATS = [*LOAD, *LABELS, *ENGINE]
