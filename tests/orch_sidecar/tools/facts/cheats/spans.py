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
    engine,
    raised,
    recounted,
    set_to,
    sidecar,
)
from tests.orch_sidecar.tools.facts.cheats.traces import cases
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


CHEATS = cases(
    {
        ("untraced_requests", "home"): {
            "a whole trace is missing on home": without_trace(1),
            "two whole traces are missing": without_trace(1, 3),
            "a client without spans, in between": stranger_inside(40, 2, 5),
            "a client without spans that came last": raised("orch.requests_total", 1, [4]),
        },
        ("untraced_sequences", "home"): {
            "so are the steps of it": without_trace(2),
            "a client without spans, its tokens": stranger_inside(40, 2, 5),
        },
        ("untraced_requests", "cloud"): {"a trace is missing on cloud": without_trace(2)},
        ("untraced_sequences", "cloud"): {
            "the first trace of six at once is missing": without_trace(0),
            "a client without spans that came before, and stayed": both(
                raised("orch.decode_sequences_total", 25),
                raised("orch.decode_sequences_total", 40, [5]),
            ),
        },
        ("unseen_traffic", "offline"): {"a trace is missing offline": without_trace(4)},
        ("unseen_traffic", "home"): {
            "a client without spans in one step": engine("batch_size.max", 2, [3])
        },
        ("other_traffic", "home"): {
            "a client of the engine whose spans have no sidecar": changed(
                SEQUENCE, lambda span: replace(span, parent_id=None), [2]
            )
        },
        ("other_traffic", "cloud"): {
            "a traced client of the engine, besides": copied(
                0, 0.01, dropped(WAIT), dropped(ATTEMPT), dropped(SERVER)
            ),
            "a client with another scenario": both(
                copied(1, 0.02, set_to(SERVER, FOREIGN)), recounted
            ),
            "a client that joins the scenario without its secret id": both(
                sidecar("run", "0" * 32),
                copied(1, 0.02, changed(SERVER, lambda span: without([span], "orch.run")[0])),
                recounted,
            ),
            "a client that joins the scenario with an id of its own": both(
                sidecar("run", "0" * 32), copied(1, 0.02, sidecar("run", "1" * 32)), recounted
            ),
            "a cancelled request of another": both(
                copied(
                    1,
                    0.02,
                    set_to(SERVER, {**FOREIGN, "orch.outcome": "cancelled"}),
                    set_to(ATTEMPT, {"orch.outcome": "cancelled"}),
                    dropped(SEQUENCE),
                ),
                recounted,
            ),
            "a warm-up that was not over": sidecar("scenario", "cloud-1.warmup", [5]),
        },
        ("coalesced", "cloud"): {"an answer for several requests": sidecar("coalesced", True, [2])},
        ("not_counted", "cloud"): {
            "spans without counters": lambda spans: without(spans, *COUNTERS),
            "one sequence without counters": changed(
                SEQUENCE, lambda span: without([span], "orch.requests_total")[0], [3]
            ),
        },
        ("contradiction", "home"): {
            "a copy of a request, with its number": copied(2, 5.0),
            "so few decode steps that the mean batch is above the largest": engine(
                "decode_steps_total", 12
            ),
            "a number above the total": raised("orch.request_number", 1),
            "more decode steps than steps": engine("engine_steps", 3),
            "more tokens from the prefix cache than prompts have": raised(
                "orch.prefix_cache.hits_total", 1000, [2]
            ),
            "a forged request after the run: 100 000 tokens, no step": both(
                copied(2, 5.0, set_to(SEQUENCE, {TOKENS: 100_000, "orch.steps": 0})), recounted
            ),
            "an end before the start": changed(
                SERVER, lambda span: replace(span, end_ns=span.start_ns - 1), [1]
            ),
            "an answer that came before it was generated": changed(SERVER, shortened),
        },
        ("contradiction", "cloud"): {
            "fewer decode steps since the epoch than one sequence had": engine(
                "decode_steps_total", 10
            ),
            "480 tokens in 46 steps": set_to(SEQUENCE, {TOKENS: 480, "orch.engine_steps": 46}, [0]),
            "tokens that the steps of speculative decoding cannot have": set_to(
                SEQUENCE, {"orch.speculative": "ngram:3", "orch.tokens_per_step": 4, TOKENS: 4 * 40}
            ),
            "a first token after the last": sidecar("first_byte_s", 9.0, [3]),
            "a last token before the first": sidecar("last_token_s", 0.001, [3]),
            "a first token before the request": sidecar("first_byte_s", -1.0, [3]),
            "a last token after the end": sidecar("last_token_s", 7.5, [3]),
            "a stream whose last token came before it was generated": set_to(
                SERVER, {"orch.first_byte_s": 0.001, "orch.last_token_s": 0.002}, [5]
            ),
            "a decode that took longer than the answer": set_to(SEQUENCE, {DECODE_S: 3.0}, [2]),
            "an inference that took longer than the answer": set_to(
                SEQUENCE, {INFERENCE_S: 3.0}, [2]
            ),
        },
        ("contradiction", "offline"): {
            "sidecar and engine count other tokens": set_to(SERVER, {TOKENS: 400}, [2]),
            "sidecar and engine count other prompts": set_to(
                SERVER, {"gen_ai.usage.input_tokens": 400}, [2]
            ),
        },
    }
)
