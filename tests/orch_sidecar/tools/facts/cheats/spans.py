"""Labels and figures that were not earned: others used the engine, or the spans contradict."""

from __future__ import annotations

from dataclasses import replace

from orch_sidecar.tools.facts.traces.spans import Span
from tests.orch_sidecar.tools.facts.cheats.alterations import (
    ATTEMPT,
    SEQUENCE,
    SERVER,
    WAIT,
    Alteration,
    both,
    changed,
    copied,
    dropped,
    raised,
    recounted,
    set_to,
)
from tests.orch_sidecar.tools.facts.cheats.traces import case
from tests.orch_sidecar.tools.facts.spans import COUNTERS, without

FOREIGN = {"orch.scenario": "another"}


def stranger_inside(tokens: int, after: int, count: int) -> Alteration:
    """A request without spans: the engine numbers those that follow one higher, and its steps."""
    later = range(after, count)
    return both(
        raised("orch.request_number", 1, later),
        raised("orch.requests_total", 1, later),
        raised("orch.decode_steps_total", tokens, later),
        raised("orch.decode_sequences_total", tokens, later),
    )


def without_trace(*numbers: int) -> Alteration:
    return dropped(None, numbers)


DECODE_S, INFERENCE_S = (f"gen_ai.latency.time_in_model_{part}" for part in ("decode", "inference"))
TOKENS = "gen_ai.usage.output_tokens"


def shortened(span: Span) -> Span:
    """A tenth of the time."""
    return replace(span, end_ns=span.start_ns + (span.end_ns - span.start_ns) // 10)


# (name, recording, alteration, the reason)
OTHERS: list[tuple[str, str, Alteration, str]] = [
    ("a whole trace is missing on home", "home", without_trace(1), "untraced_requests"),
    ("so are the steps of it", "home", without_trace(2), "untraced_sequences"),
    ("two whole traces are missing", "home", without_trace(1, 3), "untraced_requests"),
    ("a trace is missing on cloud", "cloud", without_trace(2), "untraced_requests"),
    ("the first trace of six at once is missing", "cloud", without_trace(0), "untraced_sequences"),
    ("a trace is missing offline", "offline", without_trace(4), "unseen_traffic"),
    ("a client without spans, in between", "home", stranger_inside(40, 2, 5), "untraced_requests"),
    ("a client without spans, its tokens", "home", stranger_inside(40, 2, 5), "untraced_sequences"),
    (
        "a client without spans that came last",
        "home",
        raised("orch.requests_total", 1, [4]),
        "untraced_requests",
    ),
    (
        "a client without spans that came before, and stayed",
        "cloud",
        both(
            raised("orch.decode_sequences_total", 25),
            raised("orch.decode_sequences_total", 40, [5]),
        ),
        "untraced_sequences",
    ),
    (
        "a client without spans in one step",
        "home",
        set_to(SEQUENCE, {"orch.batch_size.max": 2}, [3]),
        "unseen_traffic",
    ),
    (
        "a client of the engine whose spans have no sidecar",
        "home",
        changed(SEQUENCE, lambda span: replace(span, parent_id=None), [2]),
        "other_traffic",
    ),
    (
        "a traced client of the engine, besides",
        "cloud",
        copied(0, 0.01, dropped(WAIT), dropped(ATTEMPT), dropped(SERVER)),
        "other_traffic",
    ),
    (
        "a client with another scenario",
        "cloud",
        both(copied(1, 0.02, set_to(SERVER, FOREIGN)), recounted),
        "other_traffic",
    ),
    (
        "a client that joins the scenario without its secret id",
        "cloud",
        both(
            set_to(SERVER, {"orch.run": "0" * 32}),
            copied(1, 0.02, changed(SERVER, lambda span: without([span], "orch.run")[0])),
            recounted,
        ),
        "other_traffic",
    ),
    (
        "a client that joins the scenario with an id of its own",
        "cloud",
        both(
            set_to(SERVER, {"orch.run": "0" * 32}),
            copied(1, 0.02, set_to(SERVER, {"orch.run": "1" * 32})),
            recounted,
        ),
        "other_traffic",
    ),
    (
        "a cancelled request of another",
        "cloud",
        both(
            copied(
                1,
                0.02,
                set_to(SERVER, {**FOREIGN, "orch.outcome": "cancelled"}),
                set_to(ATTEMPT, {"orch.outcome": "cancelled"}),
                dropped(SEQUENCE),
            ),
            recounted,
        ),
        "other_traffic",
    ),
    (
        "a warm-up that was not over",
        "cloud",
        set_to(SERVER, {"orch.scenario": "cloud-1.warmup"}, [5]),
        "other_traffic",
    ),
    (
        "an answer for several requests",
        "cloud",
        set_to(SERVER, {"orch.coalesced": True}, [2]),
        "coalesced",
    ),
    ("spans without counters", "cloud", lambda spans: without(spans, *COUNTERS), "not_counted"),
    (
        "one sequence without counters",
        "cloud",
        changed(SEQUENCE, lambda span: without([span], "orch.requests_total")[0], [3]),
        "not_counted",
    ),
    ("a copy of a request, with its number", "home", copied(2, 5.0), "contradiction"),
    (
        "fewer decode steps since the epoch than one sequence had",
        "cloud",
        set_to(SEQUENCE, {"orch.decode_steps_total": 10}),
        "contradiction",
    ),
    (
        "so few decode steps that the mean batch is above the largest",
        "home",
        set_to(SEQUENCE, {"orch.decode_steps_total": 12}),
        "contradiction",
    ),
    (
        "a number above the total",
        "home",
        raised("orch.request_number", 1),
        "contradiction",
    ),
    (
        "more decode steps than steps",
        "home",
        set_to(SEQUENCE, {"orch.engine_steps": 3}),
        "contradiction",
    ),
    (
        "more tokens from the prefix cache than prompts have",
        "home",
        raised("orch.prefix_cache.hits_total", 1000, [2]),
        "contradiction",
    ),
]


# (name, recording, alteration)
CONTRADICTIONS: list[tuple[str, str, Alteration]] = [
    (
        "a forged request after the run: 100 000 tokens, no step",
        "home",
        both(
            copied(2, 5.0, set_to(SEQUENCE, {TOKENS: 100_000, "orch.steps": 0})),
            recounted,
        ),
    ),
    (
        "480 tokens in 46 steps",
        "cloud",
        set_to(SEQUENCE, {TOKENS: 480, "orch.engine_steps": 46}, [0]),
    ),
    (
        "tokens that the steps of speculative decoding cannot have",
        "cloud",
        set_to(
            SEQUENCE,
            {"orch.speculative": "ngram:3", "orch.tokens_per_step": 4, TOKENS: 4 * 40},
        ),
    ),
    ("a first token after the last", "cloud", set_to(SERVER, {"orch.first_byte_s": 9.0}, [3])),
    ("a last token before the first", "cloud", set_to(SERVER, {"orch.last_token_s": 0.001}, [3])),
    ("a first token before the request", "cloud", set_to(SERVER, {"orch.first_byte_s": -1.0}, [3])),
    ("a last token after the end", "cloud", set_to(SERVER, {"orch.last_token_s": 7.5}, [3])),
    (
        "an end before the start",
        "home",
        changed(SERVER, lambda span: replace(span, end_ns=span.start_ns - 1), [1]),
    ),
    ("an answer that came before it was generated", "home", changed(SERVER, shortened)),
    (
        "a stream whose last token came before it was generated",
        "cloud",
        set_to(SERVER, {"orch.first_byte_s": 0.001, "orch.last_token_s": 0.002}, [5]),
    ),
    (
        "a decode that took longer than the answer",
        "cloud",
        set_to(SEQUENCE, {DECODE_S: 3.0}, [2]),
    ),
    (
        "an inference that took longer than the answer",
        "cloud",
        set_to(SEQUENCE, {INFERENCE_S: 3.0}, [2]),
    ),
    ("sidecar and engine count other tokens", "offline", set_to(SERVER, {TOKENS: 400}, [2])),
    (
        "sidecar and engine count other prompts",
        "offline",
        set_to(SERVER, {"gen_ai.usage.input_tokens": 400}, [2]),
    ),
]


CHEATS = [
    *(case(*each) for each in OTHERS),
    *(case(*each, "contradiction") for each in CONTRADICTIONS),
]
