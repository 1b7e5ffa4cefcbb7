"""Labels that were not earned, because others used the engine: traced, or not at all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.orch_sidecar.tools.facts.spans import COUNTERS, without
from tests.orch_sidecar.tools.facts.traces.alterations import (
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
    reasons,
    recounted,
    set_to,
    verdict,
)

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


# (name, recording, alteration, the reason that must be among the objections)
CASES: list[tuple[str, str, Alteration, str]] = [
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


@pytest.mark.parametrize(
    ("recording", "alter", "reason"),
    [case[1:] for case in CASES],
    ids=[case[0] for case in CASES],
)
def test_label_is_not_earned(recording: str, alter: Alteration, reason: str) -> None:
    found = verdict(recording, alter)
    assert found.row is None
    assert reason in reasons(found), found.objections
