"""Statements and finished sequences as the engine keeps them: bounded, chained, in one order."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from vllm_plugin.contracts.statement import first_head, from_base64, next_head, parse_leaf
from vllm_plugin.evidence.chains import (
    MAX_STATEMENTS,
    Evidence,
    FinishedRequests,
    Forgotten,
    Statement,
    StatementRequest,
)
from vllm_plugin.evidence.epoch_key import EpochKey, make_epoch_key

NO_MORE = StatementRequest("run", None, None)


def finished(request_id: str = "cmpl-1", generated: int = 6) -> Any:
    return SimpleNamespace(
        request_id=request_id, finish_reason="stop", e2e_latency=2.0, queued_time=0.5,
        prefill_time=0.25, decode_time=1.25, num_prompt_tokens=20,
        num_generation_tokens=generated, num_cached_tokens=16,
    )  # fmt: skip


def evidence(keys: list[EpochKey] | None = None) -> Evidence:
    def make() -> EpochKey:
        key = make_epoch_key("e1", None, 0.0)
        if keys is not None:
            keys.append(key)
        return key

    return Evidence("e1", lambda at_s: {"at_s": at_s}, lambda: {"weights": None}, make)


def content(statement: Statement) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(from_base64("payload", statement.envelope["payload"]))
    return found


def test_sequences_of_one_request_have_one_request_whatever_vllm_calls_them() -> None:
    chain = FinishedRequests("e1")
    ids = ("cmpl-a-0", "cmpl-a-1", "cmpl-b-0", "cmpl-a-b-1", "chatcmpl-a-0", "chatcmpl-a-1")
    chain.add([finished(each) for each in ids], 100.0)
    requests = [parse_leaf(line).request for line in chain.since(0)]
    assert requests[0] == requests[1]
    assert len(set(requests)) == 5


def test_finished_sequence_is_a_leaf_of_the_chain() -> None:
    chain = FinishedRequests("e1")
    chain.add([finished()], 100.0)
    [line] = chain.since(0)
    leaf = parse_leaf(line)
    assert (leaf.number, leaf.arrived_s, leaf.ended_s) == (1, 98.0, 100.0)
    assert (leaf.queued_s, leaf.prefill_s, leaf.decode_s) == (0.5, 0.25, 1.25)
    assert (leaf.prompt_tokens, leaf.generated_tokens, leaf.cached_tokens) == (20, 6, 16)
    assert leaf.finish_reason == "stop"
    assert chain.head == next_head(first_head("leaves", "e1"), line.encode())


def test_sequences_of_one_request_are_equal_and_tell_nothing_of_its_id() -> None:
    chain, other = FinishedRequests("e1"), FinishedRequests("e1")
    for each in (chain, other):
        each.add([finished("cmpl-a"), finished("cmpl-a"), finished("cmpl-b")], 100.0)
    first, second, third = (parse_leaf(line).request for line in chain.since(0))
    assert first == second != third
    assert first != parse_leaf(other.since(0)[0]).request, "a hash that anybody can compute"


def test_last_sequences_are_kept_and_others_are_forgotten_with_a_reason() -> None:
    chain = FinishedRequests("e1", kept=3)
    chain.add([finished()] * 5, 100.0)
    assert [parse_leaf(line).number for line in chain.since(2)] == [3, 4, 5]
    assert chain.since(5) == []
    with pytest.raises(Forgotten, match="1 finished sequences are forgotten: the last 3 are kept"):
        chain.since(1)


def test_statement_has_what_lies_between_it_and_an_earlier_one() -> None:
    made = evidence()
    made.finished.add([finished()], 100.0)
    first = made.statement(StatementRequest("r", "ab" * 16, None), 100.5, 7.5)
    assert (first.between, first.leaves) == (None, None)
    stated = content(first)
    assert (stated["sequence"], stated["run"], stated["nonce"]) == (1, "r", "ab" * 16)
    assert (stated["wall_s"], stated["monotonic_s"]) == (100.5, 7.5)
    assert stated["previous"] == first_head("statements", "e1").hex()
    assert stated["finished"]["count"] == 1
    assert (stated["state"], stated["digests"]) == ({"at_s": 100.5}, {"weights": None})
    made.finished.add([finished(), finished()], 101.0)
    made.statement(NO_MORE, 101.0, 8.0)
    last = made.statement(StatementRequest("r", None, 1), 102.0, 9.0)
    assert content(last)["sequence"] == 3
    assert last.between is not None
    assert len(last.between) == 1
    assert [parse_leaf(line).number for line in last.leaves or ()] == [2, 3]


@pytest.mark.parametrize("since", [1, 3, 99])
def test_statement_that_is_forgotten_or_was_never_made_is_refused(since: int) -> None:
    made = evidence()
    if since == 1:
        for _ in range(MAX_STATEMENTS + 1):
            made.statement(NO_MORE, 1.0, 1.0)
    with pytest.raises(Forgotten, match=f"statement {since} is not one of the last"):
        made.statement(StatementRequest("r", None, since), 1.0, 1.0)


def test_run_stays_open_beside_a_client_that_asks_for_five_minutes() -> None:
    made, mine = evidence(), StatementRequest("mine", "ab" * 16, None)
    opened = content(made.statement(mine, 0.0, 0.0))["sequence"]
    for at_s in range(300):
        made.statement(StatementRequest("bored", None, None), at_s, at_s)
    last = made.statement(replace(mine, since=opened), 300.0, 300.0)
    assert last.between is not None
    assert len(last.between) == 300


def test_run_is_ended_once_by_who_knows_its_name_and_nonce() -> None:
    made, mine = evidence(), StatementRequest("mine", "ab" * 16, None)
    made.statement(mine, 0.0, 0.0)
    made.statement(replace(mine, since=1), 1.0, 1.0)
    other = (replace(mine, run="other"), replace(mine, nonce=None), replace(mine, nonce="cd" * 16))
    assert not any(made.end_run(replace(each, since=1)) for each in other)
    assert not any(made.end_run(replace(mine, since=since)) for since in (None, 2, 3))
    assert [made.end_run(replace(mine, since=1)) for _ in range(2)] == [True, False]


def test_runs_that_begin_for_ever_fill_no_memory() -> None:
    made = evidence()
    made.statement(NO_MORE, 0.0, 0.0)
    each, kept = made._made[0], made._made
    assert kept.maxlen == MAX_STATEMENTS
    bytes_each = sum(map(sys.getsizeof, (each, each.digest, each.leaves, each.run)))
    assert bytes_each * MAX_STATEMENTS < 12 * 2**20


def test_key_is_made_for_the_first_statement_and_never_again() -> None:
    keys: list[EpochKey] = []
    made = evidence(keys)
    made.finished.add([finished()], 100.0)
    assert keys == []
    for _ in range(2):
        made.statement(NO_MORE, 1.0, 1.0)
    assert len(keys) == 1


def test_leaf_costs_microseconds() -> None:
    """A tenth of a millisecond would be noticed by the engine; here it is measured generously."""
    chain, each = FinishedRequests("e1"), [finished()]
    best_s = min(_timed(chain, each) for _ in range(5))
    assert best_s < 50e-6


def _timed(chain: FinishedRequests, each: list[Any], times: int = 2000) -> float:
    began_s = time.process_time()  # which a busy machine does not add to
    for _ in range(times):
        chain.add(each, 100.0)
    return (time.process_time() - began_s) / times
