"""What `orch up --check` prints and objects to."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, cast

import pytest

from orch_sidecar import cli
from orch_sidecar.observability.otlp.encoder import ENGINE_SPAN, WAIT_SPAN
from orch_sidecar.tools.local import check, up
from orch_sidecar.tools.local.check import OtlpReceiver, ReceivedSpan
from orch_sidecar.tools.local.stack import Plan, Stack, StackError, free_port

IDLE: dict[str, Any] = {
    "models": ["tiny"], "slots_total": 4, "measurement_type": "batched_online", "peak": 0,
    "requests_total": 0, "steps_total": 0, "steps_by_batch": {}, "prefill": {"tokens": 0},
    "generated_tokens_total": 0,
    "running": 0, "waiting": 0, "leased": 0, "foreign": 0,
    "oversubscription_violations_total": 0,
}  # fmt: skip
HALF = IDLE | {"peak": 4, "requests_total": 4, "steps_total": 9, "running": 4, "leased": 4}
DONE = HALF | {
    "steps_total": 23, "steps_by_batch": {"4": [23, 0.2]}, "running": 0, "leased": 0,
    "generated_tokens_total": 96,
}  # fmt: skip
ANSWER = {
    "choices": [{"message": {"content": "A slot."}}],
    "usage": {"completion_tokens": 24},
}


class Sidecar(ThreadingHTTPServer):
    """Answers each request for capabilities with the next reading, and the last one again."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.readings: list[dict[str, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        readings = cast(Sidecar, self.server).readings
        self._answer({"engines": [readings.pop(0) if len(readings) > 1 else readings[0]]})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(ANSWER)

    def _answer(self, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        return


TOKENS = {"gen_ai.usage.output_tokens": 24}


class Receiver:
    """Has a trace for each request."""

    def wait(self, trace_id: str, *_: object) -> list[ReceivedSpan]:
        own = {"measurement_type": "batched_online"}
        attributes = {check.REQUEST_SPAN: own | {"orch.batch_size.max": 4, **TOKENS}}
        return [
            ReceivedSpan(trace_id, name, "", name, 0, 1, attributes.get(name, own), own)
            for name in ("/v1/chat/completions", WAIT_SPAN, ENGINE_SPAN, check.REQUEST_SPAN)
        ]


@pytest.fixture
def sidecar(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sidecar]:
    monkeypatch.setattr(check, "_READ_EVERY_S", 0.001)
    with Sidecar() as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def problems(sidecar: Sidecar) -> list[str]:
    return check.run(cast(Stack, sidecar), cast(OtlpReceiver, Receiver())).problems


def test_figures_are_read_when_the_engine_has_reported_all_of_them(
    sidecar: Sidecar, capsys: pytest.CaptureFixture[str]
) -> None:
    sidecar.readings = [IDLE, IDLE, HALF, DONE, DONE]
    assert problems(sidecar) == []
    printed = capsys.readouterr().out
    assert '"requests_total": 4' in printed
    assert '"steps_total": 23' in printed
    assert '"running": 0' in printed


def test_requests_that_the_engine_does_not_report_are_a_problem(
    sidecar: Sidecar, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "_COUNTED_WITHIN_S", 0.02)
    sidecar.readings = [copy.deepcopy(IDLE)]
    assert problems(sidecar) == [
        "4 requests were sent, but the engine reports 0 in 0 steps",
        "the generated tokens differ: 96 by the answers, 96 by the traces, 0 by the engine",
    ]


def test_verdict_in_one_line_has_figures_that_agree(sidecar: Sidecar) -> None:
    sidecar.readings = [IDLE, IDLE, DONE, DONE]
    found = check.run(cast(Stack, sidecar), cast(OtlpReceiver, Receiver()))
    assert found.problems == []
    assert found.summary == (
        "4 requests answered with 96 tokens, 4 at a time in 4 slots; the engine and 4 traces agree"
    )


@pytest.mark.parametrize("found", [[], ["an answer was empty"]])
def test_last_line_is_the_verdict(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], found: list[str]
) -> None:
    monkeypatch.setattr(up, "_run", lambda *_: check.Findings(found, "4 requests"))
    monkeypatch.setattr(up, "find_spec", lambda name: object())
    monkeypatch.setattr("orch_sidecar.tools.local.up.signal.signal", lambda *_: None)
    if found:
        with pytest.raises(SystemExit, match="orch up --check: an answer was empty"):
            up.main(["--check"], cli.read_settings)
    else:
        up.main(["--check"], cli.read_settings)
        assert capsys.readouterr().out.splitlines()[-1] == "all is well: 4 requests"


def test_port_that_is_taken_is_rejected_before_anything_starts(sidecar: Sidecar) -> None:
    taken = Stack(Plan("home", "model", port=sidecar.server_address[1]))
    with pytest.raises(StackError, match=r"Address already in use.*; choose another port"):
        taken.require_ports()
    Stack(Plan("home", "model", port=free_port())).require_ports()
