"""Reconstructing requests from spans."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import inf
from typing import Any

import pytest

from orch_sidecar.tools.facts.labels.intervals import Interval
from orch_sidecar.tools.facts.traces.requests import Outcome, Request, build_traffic
from orch_sidecar.tools.facts.traces.spans import Span
from tests.orch_sidecar.tools.facts import spans as made
from tests.orch_sidecar.tools.facts.spans import real, traffic_from


def one(number: int, start_s: float, end_s: float, **more: Any) -> list[Span]:
    """Returns the spans of a request with one sequence."""
    return made.one(number, start_s, end_s, **{"sequences": 1, **more})


def moved(span: Span, by: int, under: int | None = None) -> Span:
    """A span with its ids, and that of its parent, so much higher; the first one under another."""
    parent = under if span.parent_id is None else int(span.parent_id, 16) + by
    parent_id = None if parent is None else f"{parent:016x}"
    return replace(span, span_id=f"{int(span.span_id, 16) + by:016x}", parent_id=parent_id)


def only(*requests: list[Span]) -> Request:
    [request] = traffic_from(*requests).requests
    return request


def test_a_real_stream_has_the_sidecars_times_and_the_engines_counts() -> None:
    spans = real("cloud")
    traffic = build_traffic(spans)
    assert (len(traffic.requests), traffic.unfinished, traffic.orphans) == (6, (), ())
    for request in traffic.requests:
        [server] = [s for s in spans if s.link == request.link]
        assert (request.start_ns, request.end_ns) == (server.start_ns, server.end_ns)
        assert request.first_byte_ns is not None
        assert request.start_ns < request.first_byte_ns < request.end_ns
        assert request.scenario == "cloud-1"
        assert (request.measurement_type, request.model) == ("batched_online", "tiny")
        assert (request.pool, request.profile) == ("cloud", "cloud")
        assert (request.outcome, request.requested_sequences) == (Outcome.SERVED, 1)
        assert request.output_tokens is None  # the client did not request usage
        [decode] = request.sequences
        assert decode.batch_max == 6
        assert decode.steps == decode.output_tokens - 1
        assert request.attempts[0].start_ns <= decode.start_ns < decode.end_ns <= request.end_ns
    assert sorted(r.engine_output_tokens for r in traffic.requests) == list(range(24, 30))
    # All spans of an engine since its start have the same epoch.
    assert len({decode.engine.epoch for r in traffic.requests for decode in r.sequences}) == 1


def test_answer_that_was_not_streamed_has_no_first_byte() -> None:
    """The client received the whole answer at once."""
    assert {request.first_byte_ns for request in build_traffic(real("offline")).requests} == {None}


def test_real_requests_end_in_every_way() -> None:
    traffic = build_traffic(real("mixed"))
    by_scenario = Counter(
        (r.scenario, r.outcome, r.coalesced, r.coalesced_leader) for r in traffic.requests
    )
    assert by_scenario == {
        ("shared-1", Outcome.SERVED, False, True): 1,
        ("shared-1", Outcome.SERVED, True, False): 2,
        ("two-1", Outcome.SERVED, False, False): 1,
        ("two-1", Outcome.CANCELLED, False, False): 1,
        ("two-1", Outcome.REFUSED, False, False): 1,
        ("bulk-1", Outcome.SERVED, False, False): 2,
    }
    # vLLM exports no span for aborted requests.
    for request in traffic.requests:
        expected = 0 if request.coalesced or request.outcome is not Outcome.SERVED else 1
        assert bool(request.sequences) == bool(expected)


def test_sequences_of_one_prompt_count_its_tokens_once() -> None:
    [request] = [r for r in build_traffic(real("mixed")).requests if r.requested_sequences == 2]
    assert [decode.input_tokens for decode in request.sequences] == [22, 22]
    assert request.engine_input_tokens == request.input_tokens == 22
    assert request.engine_output_tokens == request.output_tokens == 16
    # Several prompts of one request count each.
    spans = one(1, 0, 1, sequences=2, tokens=(10, 5))
    second = replace(spans[-1], attributes={**spans[-1].attributes, "gen_ai.request.id": "other"})
    assert only([*spans[:-1], second]).engine_input_tokens == 20


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        ("ok", Outcome.SERVED),
        ("engine_error", Outcome.FAILED),
        ("client_error", Outcome.REFUSED),
        ("engine_failed", Outcome.FAILED),
        ("client_stalled", Outcome.FAILED),
        ("cancelled", Outcome.CANCELLED),
        ("cancelled_by_request", Outcome.CANCELLED),
        ("queue_full", Outcome.REFUSED),
        ("slo_miss", Outcome.REFUSED),
    ],
)
def test_outcomes_are_of_four_kinds(outcome: str, expected: Outcome) -> None:
    assert only(one(1, 0, 1, outcome=outcome)).outcome is expected


def test_repeated_spans_in_any_order_count_once() -> None:
    spans = real("home")
    assert build_traffic([*reversed(spans), *spans]) == build_traffic(spans)


def test_several_requests_of_one_trace_are_several() -> None:
    """A client can send several requests in one trace."""
    first, second = one(1, 0, 1), one(2, 2, 3)
    joined = [replace(moved(span, 100), trace_id=first[0].trace_id) for span in second]
    found = traffic_from(first, joined).requests
    assert [(r.start_ns, len(r.sequences)) for r in found] == [(0, 1), (2_000_000_000, 1)]


def test_request_through_two_sidecars_is_one_request_of_the_parent() -> None:
    """The client called the parent, which retried what the child had rejected."""
    upper = one(1, 0, 4, decoded=0, server={"orch.pool": "above"})

    def below(start_s: float, place: int, outcome: str) -> list[Span]:
        spans = one(1, start_s, start_s + 1, outcome=outcome)
        return [moved(span, place, under=3) for span in spans]

    request = only(upper, below(1, 20, "queue_full"), below(2, 40, "ok"))
    assert (request.pool, request.start_ns, request.end_ns) == ("above", 0, 4_000_000_000)
    assert (request.outcome, len(request.sequences)) == (Outcome.SERVED, 1)
    # Those of the child, not of the parent at the child.
    assert [(each.start_ns, each.failed) for each in request.attempts] == [
        (1_000_000_000, True),
        (2_000_000_000, False),
    ]


def test_failed_attempt_does_not_count() -> None:
    server, wait, engine, decode = one(1, 0, 1)
    failed = replace(
        engine,
        span_id="c" * 16,
        attributes={**engine.attributes, "orch.outcome": "engine_failed"},
    )
    thrown_away = replace(decode, span_id="d" * 16, parent_id="c" * 16)
    request = only([server, wait, engine, decode, failed, thrown_away])
    assert [len(attempt.sequences) for attempt in request.attempts] == [1, 1]
    assert [attempt.aborted for attempt in request.attempts] == [False, True]
    assert request.engine_output_tokens == 5


def test_a_request_without_its_server_span_has_not_ended() -> None:
    _, wait, engine, decode = one(1, 0, 1)
    running = traffic_from([wait, engine, decode])
    assert traffic_from([wait]).unfinished == (("pool", Interval(0, inf)),)
    assert running.unfinished == (("pool", Interval(0, 1_000_000_000)),)
    assert (running.requests, running.orphans) == ((), ())


def test_sequence_without_a_sidecar_span_is_an_orphan() -> None:
    *_, decode = one(1, 0, 1)
    for parent_id in (None, "9" * 16, decode.parent_id):
        traffic = traffic_from([replace(decode, parent_id=parent_id)])
        assert [stray.output_tokens for stray in traffic.orphans] == [5]
        assert (traffic.requests, traffic.unfinished) == ((), ())


def test_probes_are_not_requests_but_early_rejections_are() -> None:
    page = one(1, 0, 1, sequences=0, decoded=0)[:1]
    unread = one(2, 0, 1, sequences=0, outcome="invalid_request")[:1]
    assert [r.outcome for r in traffic_from(page, unread).requests] == [Outcome.REFUSED]


def test_only_coalesced_requests_make_a_leader() -> None:
    leader = one(1, 0, 1)
    link = leader[0].link
    linked = one(2, 0, 1, links=(link,))
    assert [r.coalesced_leader for r in traffic_from(leader, linked).requests] == [False, False]
    follower = one(2, 0, 1, decoded=0, server={"orch.coalesced": True}, links=(link,))[:1]
    assert [r.coalesced_leader for r in traffic_from(leader, follower).requests] == [True, False]


def test_circular_parents_end_the_search() -> None:
    _, _, engine, decode = one(1, 0, 1)
    circle = [replace(engine, parent_id=decode.span_id), decode]
    assert traffic_from(circle).requests == ()


def test_attribute_of_the_wrong_type_is_reported_with_its_span() -> None:
    with pytest.raises(ValueError, match=r"span 0+4 \(llm_request\).*orch.steps is 'many'"):
        traffic_from(one(1, 0, 1, decode={"orch.steps": "many"}))
