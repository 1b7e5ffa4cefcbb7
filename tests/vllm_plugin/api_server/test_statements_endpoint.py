"""The endpoint of statements: what it accepts, what it answers, and its bounds."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections.abc import Iterable
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient
from starlette.types import Message

from tests.patience import HANG_S
from tests.vllm_plugin.evidence.test_chains import content, evidence, finished
from vllm_plugin.api_server.routes import generates
from vllm_plugin.api_server.statements_endpoint import (
    BURST_REQUESTS,
    LINES_PER_PART,
    MAX_BODY_BYTES,
    InvalidRequest,
    RateLimit,
    StatementsEndpoint,
    encode,
    parse_request,
)
from vllm_plugin.contracts.statement import STATEMENTS_PATH
from vllm_plugin.evidence.chains import Evidence, StatementRequest
from vllm_plugin.evidence.epoch_key import EpochKey, make_epoch_key

NONCE = "ab" * 32


def post(made: Evidence, body: bytes | dict[str, Any]) -> tuple[int, Any]:
    return answers(made, [body])[0]


def answers(made: Evidence, bodies: Iterable[Any], every_s: float = 0.0) -> list[tuple[int, Any]]:
    app, clock = FastAPI(), itertools.count(0.0, every_s)
    StatementsEndpoint(made, lambda: next(clock)).attach(app)
    client = TestClient(app)
    found = []
    for body in bodies:
        sent = body if isinstance(body, bytes) else json.dumps(body).encode()
        answer = client.post(STATEMENTS_PATH, content=sent)
        found.append((answer.status_code, answer.json()))
    return found


def test_answer_has_statement_key_and_what_lies_between() -> None:
    made = evidence()
    bodies: list[Any] = [{"run": "r", "nonce": NONCE}, {"run": "r", "nonce": NONCE, "since": 1}]
    (status, first), (again, second) = answers(made, bodies)
    assert (status, again) == (200, 200)
    assert (first["between"], first["leaves"]) == (None, None)
    assert (second["between"], second["leaves"]) == ([], [])
    assert first["public_key"] == second["public_key"] == made.public_key
    assert first["certificate"] is None


def test_leaves_are_answered_as_they_are_hashed() -> None:
    made = evidence()
    made.statement(StatementRequest("r", None, None), 1.0, 1.0)
    made.finished.add([finished(), finished()], 100.0)
    statement = made.statement(StatementRequest("r", None, 1), 2.0, 2.0)
    answer = json.loads(b"".join(encode(statement, made)))
    assert answer["leaves"] == made.finished.since(0)
    assert answer["statement"] == statement.envelope


@pytest.mark.parametrize("lines", [0, 1, LINES_PER_PART, LINES_PER_PART + 1])
def test_answer_in_parts_is_one_document(lines: int) -> None:
    made = evidence()
    for _ in range(lines + 1):
        made.statement(StatementRequest("r", None, None), 1.0, 1.0)
    made.finished.add([finished()] * lines, 100.0)
    [(status, answer)] = answers(made, [{"run": "r", "since": 1}])
    assert (status, answer["leaves"]) == (200, made.finished.since(0))
    assert answer["between"] == [each.digest for each in made._made][1:-1]


async def test_answer_that_nobody_reads_is_not_made() -> None:
    made = evidence()
    made.statement(StatementRequest("r", None, None), 1.0, 1.0)
    made.finished.add([finished()] * (20 * LINES_PER_PART), 100.0)
    app = FastAPI()
    StatementsEndpoint(made).attach(app)
    full, written = asyncio.Event(), 0
    received = [{"type": "http.request", "body": b'{"run": "r", "since": 1}'}]

    async def receive() -> Message:
        if not received:
            await asyncio.Event().wait()
        return received.pop()

    async def send(message: Message) -> None:
        nonlocal written
        written += len(message.get("body", b""))
        if written > 100_000:
            full.set()
            await asyncio.Event().wait()

    scope = {"type": "http", "method": "POST", "path": STATEMENTS_PATH, "headers": []}
    serving = asyncio.create_task(app(scope | {"query_string": b""}, receive, send))
    await asyncio.wait_for(full.wait(), HANG_S)
    await asyncio.sleep(0.05)
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    assert written < 400_000  # of two million


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "must be JSON"),
        (b"\xff", "must be JSON"),
        (b"[" * 900, "must be JSON"),
        (b"[]", "must be an object"),
        ({}, "run must be 1 to 64"),
        ({"run": "a b"}, "run must be 1 to 64"),
        ({"run": "r\n"}, "run must be 1 to 64"),
        ({"run": 5}, "run must be 1 to 64"),
        ({"run": "r", "nonce": "ab"}, "nonce must be 32 to 128"),
        ({"run": "r", "nonce": NONCE.upper()}, "nonce must be 32 to 128"),
        ({"run": "r", "since": 0}, "since must be the sequence number"),
        ({"run": "r", "since": True}, "since must be the sequence number"),
        ({"run": "r", "more": 1}, "'more' is unknown"),
        ({"run": "r" * MAX_BODY_BYTES}, f"too large: at most {MAX_BODY_BYTES} bytes"),
    ],
)
def test_invalid_request_is_refused_with_the_rule(body: Any, message: str) -> None:
    made = evidence()
    status, answer = post(made, body)
    assert (status, answer["error"]["code"]) == (400, 400)
    assert message in answer["error"]["message"]
    assert content(made.statement(StatementRequest("r", None, None), 1.0, 1.0))["sequence"] == 1


def test_statement_that_is_not_kept_is_a_conflict() -> None:
    status, answer = post(evidence(), {"run": "r", "since": 5})
    assert (status, answer["error"]["type"]) == (409, "evidence_forgotten")


def test_engine_does_not_sign_all_day() -> None:
    found = answers(evidence(), [{"run": "r"}] * (BURST_REQUESTS + 2))
    assert [status for status, _ in found] == [200] * BURST_REQUESTS + [429] * 2
    limit = RateLimit(2, 1.0)
    assert [limit.take(at_s) for at_s in (0, 0, 0, 0.5, 1.1, 1.2, 99, 99, 99)] == [
        *(True, True, False, False, True, False, True, True, False),
    ]


@pytest.mark.parametrize(
    ("every_s", "signed"), [(1.0, 300), (0.01, BURST_REQUESTS + 15), (0.0, BURST_REQUESTS - 1)]
)
def test_end_of_a_run_is_signed_whatever_others_ask_for_meanwhile(
    every_s: float, signed: int
) -> None:
    """A bored client for five minutes, and such that ask far more often than the engine signs."""
    began: dict[str, Any] = {"run": "mine", "nonce": NONCE}
    bodies = [began, *[{"run": "bored"}] * 300, began | {"since": 1}, began | {"since": 1}]
    (first, _), *bored, (last, answer), (again, _) = answers(evidence(), bodies, every_s)
    assert (first, last) == (200, 200)
    assert sum(status == 200 for status, _ in bored) == pytest.approx(signed, abs=2)
    assert len(answer["between"]) == sum(status == 200 for status, _ in bored)
    assert every_s or again == 429, "a run ends once"


def test_engine_without_the_library_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Any:
        raise ImportError("No module named 'cryptography'")

    made = Evidence("e1", lambda at_s: {}, dict, missing)
    status, answer = post(made, {"run": "r"})
    assert (status, answer["error"]["type"]) == (501, "evidence_unavailable")


def test_library_is_loaded_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    monkeypatch.setattr(
        "vllm_plugin.api_server.statements_endpoint.load_library",
        lambda: threads.append(threading.get_ident()),
    )

    def key() -> EpochKey:
        threads.append(threading.get_ident())
        return make_epoch_key("e1", None, 0.0)

    status, _ = post(Evidence("e1", lambda at_s: {}, dict, key), {"run": "r"})
    loading, signing = threads
    assert (status, loading != signing) == (200, True)


def test_request_for_a_statement_is_no_generating_request() -> None:
    assert not generates("POST", STATEMENTS_PATH)
    assert parse_request(b'{"run": "r"}') == StatementRequest("r", None, None)
    with pytest.raises(InvalidRequest):
        parse_request(b"null")
