"""What `orch up` starts, without starting it, and what it says of an engine that starts.

What `orch up --check` prints and objects to.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, cast

import pytest

from orch_sidecar import cli
from orch_sidecar.observability.otlp.encoder import ENGINE_SPAN, WAIT_SPAN
from orch_sidecar.tools.local import check, up
from orch_sidecar.tools.local.check import OtlpReceiver, ReceivedSpan
from orch_sidecar.tools.local.stack import Plan, Stack, StackError, free_port
from orch_sidecar.tools.local.up import FIRST_PHASE, phase_of

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


def test_one_beside_another_has_logs_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans: list[Plan] = []

    def stack(plan: Plan) -> None:
        plans.append(plan)
        raise StackError("enough is known")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(up, "Stack", stack)
    for port, more in ((8080, ()), (8081, ()), (8081, ("--check",))):
        with pytest.raises(StackError):
            up._run(
                up.parser().parse_args(["--model", "m", *more]),
                cli.read_settings([f"--port={port}"]),
            )
    directories = [str(plan.log_directory.relative_to(tmp_path)) for plan in plans]
    assert directories == ["orch/logs/8080", "orch/logs/8081", "orch/logs/8081"]


PREFIX = "(EngineCore pid=12) INFO 11-23 09:02:21 [x.py:1] "


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("Resolved architecture: LlamaForCausalLM", ("reading its configuration", "")),
        ("orch: profile cloud (batched_online): 8 slots", ("starting its workers", "")),
        ("Initializing a V1 LLM engine (v0.32.0) with config: x", ("starting its workers", "")),
        ("Starting to load model /m...", ("loading the weights", "")),
        (
            "Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:01<00:01]",
            ("loading the weights", "50%"),
        ),
        ("Loading weights took 0.03 seconds", ("preparing the model", "")),
        ("Dynamo bytecode transform time: 2.4 s", ("compiling the model", "")),
        ("orch: warming up: compiling what requests with logprobs use", ("warming up", "")),
        ("init engine (profile, create kv cache, warmup model) took 1 s", ("starting its API", "")),
        ("GPU KV cache size: 262,144 tokens", ("reserving the KV cache", "")),
        (
            "Capturing CUDA graphs (decode, FULL):  43%|####      | 3/7",
            ("capturing CUDA graphs", "43%"),
        ),
        ("Starting vLLM server on http://127.0.0.1:8000", ("starting its API", "")),
    ],
)
def test_line_of_vllm_is_a_phase(line: str, found: tuple[str, str]) -> None:
    assert phase_of([PREFIX + line]) == found


def test_last_line_that_is_known_counts() -> None:
    eager = "Enforce eager set, disabling torch.compile, CUDAGraphs, and JIT kernel warmup."
    lines = ["Starting to load model m", "GPU KV cache size: 1", eager, ""]
    assert phase_of(lines) == ("reserving the KV cache", "")


def test_before_vllm_writes_anything_it_is_imported() -> None:
    assert phase_of([]) == (FIRST_PHASE, "")
