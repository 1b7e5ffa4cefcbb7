"""What spans show of a scenario: its load, what its engine counted, and others in that engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest

from orch_sidecar.tools.facts.labels.measured import Source
from orch_sidecar.tools.facts.tables.row import Row, parse_notes
from orch_sidecar.tools.facts.traces.scenarios import group_scenarios
from orch_sidecar.tools.facts.traces.spans import Span, Value
from orch_sidecar.tools.facts.traces.verdict import judge_scenario
from tests.orch_sidecar.tools.facts.cheats.alterations import reasons
from tests.orch_sidecar.tools.facts.objections import LABELS, judged, objections_to, valid
from tests.orch_sidecar.tools.facts.spans import alone, counted, one, traffic_from

# Whether requests came as a label requires, and the batch that offline requires.
SLOTS = 8


def offline(number: int, start_s: float, end_s: float, **more: Any) -> list[Span]:
    """Returns a request of one sequence, in an engine of 8 slots that are all used."""
    defaults: dict[str, Any] = {
        "label": "offline",
        "sequences": 1,
        "batch": (4, SLOTS, 8.0),
        "server": {"orch.class": "bulk"},
    }
    return one(number, start_s, end_s, **{**defaults, **more})


def objected(*requests: list[Span]) -> set[str]:
    """Returns the objections to the load."""
    return reasons(judged(*requests)) & {"one_by_one", "trickle", "batch_not_full"}


def closed_loop(clients: int, pause_s: float) -> list[list[Span]]:
    """Returns ten requests of each client, which waits for its answers: staggered, of 1 s each."""
    return [
        offline(
            1 + client + clients * turn,
            turn * (1 + pause_s) + client * 0.01 * (turn > 0),
            turn * (1 + pause_s) + client * 0.01 + 1,
        )
        for turn in range(10)
        for client in range(clients)
    ]


def large(batch: int) -> list[list[Span]]:
    """Returns 120 requests at once, in an engine of 100 slots."""
    more: dict[str, Any] = {"decode": {"orch.slots_total": 100}, "tokens": (10, 100)}
    return [offline(n, 0, 1, batch=(4, batch, 80.0), **more) for n in range(120)]


@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        ([offline(n, n / 1000, 10 + n) for n in range(1, 30)], set()),  # all at once
        (closed_loop(clients=SLOTS, pause_s=0.01), set()),
        (closed_loop(clients=SLOTS, pause_s=0.3), {"trickle"}),
        (closed_loop(clients=SLOTS // 2, pause_s=0.0), {"trickle"}),
        (closed_loop(clients=1, pause_s=0.0), {"one_by_one", "trickle"}),
        # What was rejected is no supply.
        ([*closed_loop(clients=4, pause_s=0.0),
          *(offline(100 + n, 0, 10, outcome="queue_full")[:2] for n in range(SLOTS))],
         {"trickle"}),
        # All are in flight at once in the end, but most of the time they are not.
        ([offline(n, n, 20) for n in range(8)], {"trickle"}),
        ([offline(n, n / 10, 20) for n in range(8)], set()),
        # Every slot is used in one step at least.
        (large(100), set()),
        (large(99), {"batch_not_full"}),
    ],
)  # fmt: skip
def test_offline_has_everything_at_once_or_no_slot_that_runs_dry(
    requests: list[list[Span]], expected: set[str]
) -> None:
    assert objected(*requests) == expected


def waiting(request: list[Span], until_s: float) -> list[Span]:
    """Returns a request that waited for admission from the start, then was sent to the engine."""
    until_ns = round(until_s * 1e9)
    server, wait, *rest = request
    waited = replace(wait, start_ns=0, end_ns=until_ns)
    return [server, waited, *(replace(span, start_ns=until_ns) for span in rest)]


def eight(until_s: float, decode: Mapping[str, Value], batch: int = 4) -> list[list[Span]]:
    """Returns four requests, and four that were dispatched later, or had to wait in the engine."""
    steps = (4, batch, float(batch))
    first = [waiting(offline(n, 0, 5, batch=steps), 0) for n in range(1, 5)]
    later = [offline(n, 0, 10, batch=steps, decode=decode) for n in range(5, 9)]
    return [*first, *(waiting(each, until_s) for each in later)]


def test_what_limited_an_offline_batch_is_noted() -> None:
    """Eight requests for eight slots, of which four ran at a time."""
    queued: dict[str, Value] = {"gen_ai.latency.time_in_queue": 4.5}
    for limited_by, requests in (("admission", eight(5, {})), ("engine", eight(0, queued))):
        found = judged(*requests)
        assert isinstance(found, Row), found
        assert parse_notes(found.scenario_notes)["batch_limited_by"] == limited_by
    # The engine had four, and decoded two of them at a time: admission does not explain that.
    assert objected(*eight(5, {}, batch=2)) == {"batch_not_full"}
    assert objected(*eight(0, {})) == {"batch_not_full"}


@pytest.mark.parametrize("label", ["batched_online", "offline"])
def test_requests_that_never_overlap_are_not_batched(label: str) -> None:
    """However many sequences each of them has."""
    alone = [one(n, n, n + 1, label=label, sequences=4, batch=(4, 4, 4.0)) for n in range(6)]
    assert "one_by_one" in objected(*alone)
    assert "one_by_one" not in objected(*alone, one(9, 0.5, 1.5, label=label, batch=(4, 4, 4.0)))


# What the engine counted, against what was traced: the bounds of both sums.
def two(
    extra: int, *, steps: int | None = None, more: Mapping[str, Value] = MappingProxyType({})
) -> list[list[Span]]:
    """Returns two requests one after the other, each of 5 tokens in 4 decode steps alone.

    Between them the engine counted so many more sequences, in as many steps more (or `steps`).
    """
    more_steps = extra if steps is None else steps
    requests = []
    for number, (in_steps, sequences) in enumerate(((4, 4), (8 + more_steps, 8 + extra)), start=1):
        counters: dict[str, Value] = {
            "orch.decode_steps_total": in_steps,
            "orch.decode_sequences_total": sequences,
            **more,
        }
        requests.append(alone(number, number, number + 1, decode=counters))
    return requests


@pytest.mark.parametrize(
    ("most", "more"),
    [
        # A sequence takes part in no more steps than it has tokens.
        (2, {}),
        (2, {"gen_ai.request.max_tokens": 5}),
        # The API server finds a stop string: the engine's own count of tokens has no end there.
        (6, {"gen_ai.request.max_tokens": 100}),
        # With speculative decoding the steps alone count.
        (4, {"orch.speculative": "ngram:3", "orch.tokens_per_step": 4}),
    ],
)
def test_sequence_takes_part_in_as_many_steps_as_it_can(most: int, more: dict[str, Value]) -> None:
    assert objections_to(*two(most, more=more)) == {}
    decoded = 8 + most + 1
    assert objections_to(*two(most + 1, more=more)) == {
        "untraced_sequences": f"the engine decoded at least {decoded} tokens in the window, of "
        f"which at most {decoded - 1} are of this measurement: the engine served other clients, or "
        "its states are of another run"
    }


def test_drafts_beyond_a_stop_string_are_no_tokens_of_the_answer() -> None:
    """vLLM's statistics have them, its answer has not."""

    def of(answered: int, most: int, drafts: int) -> dict[str, str]:
        decode: dict[str, Value] = {
            "gen_ai.request.max_tokens": most,
            "orch.speculative": f"ngram:{drafts}" if drafts else "none",
            "orch.tokens_per_step": 1 + drafts,
        }
        server: dict[str, Value] = {"gen_ai.usage.output_tokens": answered}
        return objections_to(alone(1, 1, 2, decode=decode, server=server))

    assert of(5, 100, 3) == {}
    assert of(2, 100, 3) == {}
    for wrong in (of(1, 100, 3), of(6, 100, 3), of(4, 5, 3), of(4, 100, 0)):
        assert list(wrong) == ["contradiction"]


def test_aborted_request_accounts_for_its_number_and_for_the_steps_of_the_window() -> None:
    """vLLM exports no span for it."""
    aborted = alone(3, 2.2, 2.4, outcome="cancelled")
    assert objections_to(*two(10, steps=0), aborted) == {}
    assert list(objections_to(*two(11, steps=0), aborted)) == ["untraced_sequences"]
    assert objections_to(*two(0, more={"orch.requests_total": 3}), aborted) == {}
    assert objections_to(*two(0, more={"orch.requests_total": 4}), aborted) == {
        "untraced_requests": "the engine accepted 4 requests in the window, but this measurement "
        "sent 3: the engine served other clients, too"
    }


@pytest.mark.parametrize(
    ("tokens", "decode", "expected"),
    [
        # The last step, and one of asynchronous scheduling, are not counted.
        (10, {"orch.engine_steps": 8}, None),
        (11, {"orch.engine_steps": 8}, "more tokens than the engine's steps can have generated"),
        (5, {"orch.request_number": 0, "orch.requests_total": 0}, "that contradict each other"),
        (5, {"orch.request_number": -1, "orch.requests_total": -1}, "that contradict each other"),
    ],
)
def test_counts_that_an_engine_cannot_have_are_a_contradiction(
    tokens: int, decode: dict[str, Value], expected: str | None
) -> None:
    found = objections_to(alone(1, 0, 1, tokens=(10, tokens), decode=decode))
    assert "contradiction" in found if expected else found == {}
    assert found.get("contradiction", "").endswith(expected or "")


def test_sequences_of_one_request_have_one_number() -> None:
    spans = counted(one(1, 0, 1, sequences=2))
    last = replace(spans[-1], attributes={**spans[-1].attributes, "orch.request_number": 2,
                                          "orch.requests_total": 2})  # fmt: skip
    found = objections_to([*spans[:-1], last])
    assert found["contradiction"].startswith("1 request: the engine numbers each request once")


# Foreign sequences in an engine are an objection, traced or visible in the steps only.
@pytest.mark.parametrize("label", LABELS)
def test_foreign_requests_in_the_same_engine_are_an_objection(label: str) -> None:
    run = [valid(label, 1, 0, 10), valid(label, 2, 10, 20)]
    before, after = valid(label, 4, -2, -1, server={}), valid(label, 5, 21, 22, server={})
    assert objections_to(*run, before, after) == {}
    count = 1 if label == "single_stream" else 2
    assert objections_to(*run, before, after, valid(label, 3, 4, 5, server={})) == {
        "other_traffic": f"foreign sequences in the same engine at the time: {count}"
    }


def test_sequence_that_has_no_number_is_one_of_the_engine() -> None:
    """A client of the engine whose span is below no other: the engine cannot number it."""
    run = valid("single_stream", 1, 0, 10)
    *_, stranger = valid("single_stream", 2, 4, 5, server={}, decode={"orch.request_number": None})
    found = objections_to(run, [replace(stranger, parent_id=None)])
    assert found["other_traffic"].endswith("at the time: 1")
    own = valid("single_stream", 1, 0, 10, decode={"orch.request_number": None})
    assert list(objections_to(own)) == ["not_counted"]


def in_pool(spans: list[Span], pool: str) -> list[Span]:
    return [replace(each, attributes={**each.attributes, "orch.pool": pool}) for each in spans]


def failed_attempt(spans: list[Span]) -> list[Span]:
    """Returns a request with one more attempt, from 4 to 5 s, which failed."""
    failed = {**spans[2].attributes, "orch.outcome": "engine_failed"}
    times = {"start_ns": 4 * 10**9, "end_ns": 5 * 10**9}
    return [*spans, replace(spans[2], span_id="c" * 16, attributes=failed, **times)]  # type: ignore[arg-type]


GIVEN_UP = one(2, 4, 5, label="offline", outcome="cancelled", sequences=2)
LATER = valid("offline", 2, 12, 13, server={})
WARMUP = {"orch.scenario": "run-1.warmup"}


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (valid("batched_online", 2, 4, 5, server={}, decode={"orch.epoch": "e2"}), None),
        (valid("offline", 2, -5, -1, server=WARMUP), None),
        (valid("offline", 2, -5, 1, server=WARMUP), ": 2"),
        # The engine exports no span for aborted requests, although it has worked on them.
        (GIVEN_UP, ": 2"),
        (in_pool(GIVEN_UP, "another"), None),
        (LATER, None),
        (failed_attempt(LATER), ": 2"),
    ],
)
def test_others_count_where_and_while_the_engine_worked_on_them(
    other: list[Span], expected: str | None
) -> None:
    found = objections_to(valid("offline", 1, 0, 10), other)
    assert list(found) == (["other_traffic"] if expected else [])
    assert found.get("other_traffic", "").endswith(expected or "")


def test_aborted_sequence_can_be_in_a_step_a_little_longer() -> None:
    run = valid("batched_online", 1, 10, 20, batch=(4, 4, 2.5))

    def left(end_s: float) -> list[Span]:
        return valid("batched_online", 2, 5, end_s, outcome="cancelled")

    assert objections_to(run, left(15)) == {}
    assert objections_to(run, left(9.5)) == {}
    assert list(objections_to(run, left(8.5))) == ["unseen_traffic"]


def test_requests_before_the_interval_are_not_foreign() -> None:
    traffic = traffic_from(*(valid("batched_online", n, n, n + 3, server={}) for n in range(5)))
    [found] = group_scenarios(traffic, 60.0, first_ns=2 * 10**9, last_ns=3 * 10**9)
    assert (len(found.before), len(found.requests), len(found.after)) == (2, 2, 1)
    assert isinstance(judge_scenario(found, Source("test")), Row)
