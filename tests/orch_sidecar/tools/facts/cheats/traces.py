"""Labels that were not earned: recorded scenarios, altered so that their label is false.

Here: the load, the label and the engine. `spans` has traffic that is not traced, and figures.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    engine,
    kind,
    moved,
    one_after_another,
    recounted,
    requests,
    said,
    set_to,
    sidecar,
)


def cases(found: Mapping[tuple[str, str], Mapping[str, Alteration]]) -> list[Cheat]:
    """Recorded scenarios with altered spans, by the reason that is among the objections, and the
    recording."""
    return [
        Cheat(f"{name} ({recording})", {Gate.JUDGE: f"{reason}: "}, partial(said, recording, alter))
        for (reason, recording), alterations in found.items()
        for name, alter in alterations.items()
    ]


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


CHEATS = cases(
    {
        ("trickle", "offline"): {
            "offline from a trickle": one_after_another(12, 2),
            "a trickle whose spans claim a full batch": both(
                one_after_another(12, 2), engine("batch_size.max", 8)
            ),
            "offline whose last request came late": both(moved(1.0, only=[5]), recounted),
        },
        ("batch_not_full", "offline"): {
            "a trickle's batch": one_after_another(12, 2),
            "offline requests that arrived at once, whose bodies came one after another": both(
                *(
                    both(moved(0.2 * n, ATTEMPT, [n]), moved(0.2 * n, SEQUENCE, [n]))
                    for n in range(6)
                ),
                changed(SERVER, lambda span: replace(span, end_ns=span.end_ns + 10**9)),
                engine("batch_size.max", 2),
                recounted,
            ),
            "offline whose batch was smaller than slots and work": engine("batch_size.max", 5),
        },
        ("one_by_one", "cloud"): {
            "requests for two sequences, one after another": both(
                one_after_another(6, 0), engine("batch_size.max", 2)
            )
        },
        ("never_batched", "cloud"): {
            "concurrency 1 on an engine that can batch": one_after_another(6, 0),
            "no step with two sequences": set_to(
                SEQUENCE, {"orch.batch_size.max": 1, "orch.batch_size.mean": 1.0}
            ),
        },
        ("other_traffic", "home"): {
            "a request of no time that waited": changed(
                SERVER, lambda span: replace(span, start_ns=0, end_ns=0), [1]
            ),
            "a slot that somebody else had, who left no span": both(
                *(changed(name, waited_for_a_second, [0]) for name in (SERVER, WAIT))
            ),
        },
        ("mostly_alone", "cloud"): {
            "thirty alone and a pair": one_after_another(30, 2),
            "requests for four sequences one after another, and a pair": both(
                one_after_another(6, 2), engine("batch_size.max", 4)
            ),
        },
        ("mostly_alone", "offline"): {
            "requests for sixteen sequences one after another, and two at once": both(
                one_after_another(6, 2), engine("batch_size.max", 8)
            )
        },
        ("batch_above_one", "home"): {
            "a batch above one as single_stream": engine("batch_size.max", 2, [1])
        },
        ("wrong_slots", "home"): {
            "single_stream with 8 slots": engine("slots_total", 8),
            "home labelled offline": relabelled("offline"),
        },
        ("wrong_slots", "cloud"): {"cloud with one slot": engine("slots_total", 1)},
        ("online_traffic", "offline"): {
            "interactive requests as offline": sidecar("class", "interactive", [2])
        },
        ("never_batched", "home"): {"home labelled batched_online": relabelled("batched_online")},
        ("batch_above_one", "cloud"): {"cloud labelled single_stream": relabelled("single_stream")},
        ("contradiction", "cloud"): {
            "cloud labelled offline": relabelled("offline"),
            "a label forged by the sidecar alone": set_to(SERVER, {"measurement_type": "offline"}),
            "a label forged by the engine alone": set_to(
                SEQUENCE, {"measurement_type": "single_stream"}, [3]
            ),
            "an engine clock 2 s ahead": moved(2, SEQUENCE),
            "speculative decoding that is denied": engine("tokens_per_step", 4),
        },
        ("online_traffic", "cloud"): {
            "cloud labelled offline, its profile too, with interactive requests": relabelled(
                "offline", profile="offline"
            )
        },
        ("unknown_label", "cloud"): {"a label that nothing measures": relabelled("aggregate")},
        ("contradiction", "home"): {
            "single_stream with profile=cloud": relabelled("single_stream", profile="cloud"),
            "a profile that the engine does not run": sidecar("profile", "cloud"),
            "an engine clock 100 s behind": moved(-100, SEQUENCE),
            "a sequence of another below a request's span": nested(2, below=0),
            "a sequence that is there twice": nested(1, below=1),
        },
        ("engine_changed", "cloud"): {
            "an engine that was restarted": engine("epoch", "another", [4, 5])
        },
        ("engine_not_traced", "cloud"): {
            "engine spans that were sampled out": dropped(SEQUENCE, [1])
        },
        ("engine_not_traced", "home"): {
            "no engine span at all": dropped(SEQUENCE),
            "a request without the sidecar's engine span": dropped(ATTEMPT, [2]),
        },
        ("not_ended", "home"): {"a server span that is not there yet": dropped(SERVER, [2])},
        ("nothing_served", "cloud"): {
            "requests of an engine that was killed": both(
                sidecar("outcome", "engine_failed"),
                set_to(ATTEMPT, {"orch.outcome": "engine_failed"}),
            )
        },
        ("other_traffic", "cloud"): {
            "speculative decoding in half of a run": set_to(
                SEQUENCE, {"orch.speculative": "ngram:3", "orch.tokens_per_step": 4}, [3, 4, 5]
            )
        },
        ("not_counted", "cloud"): {"conditions that nobody states": engine("quantization", "")},
    }
)
