"""The plan and the checks of `orch up`, and its progress messages, without starting an engine.

What `orch up --check` prints and objects to. Mistakes on the command line: a line with value and
rule, before anything starts.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, cast

import pytest

from orch_sidecar import cli
from orch_sidecar.observability.otlp.encoder import ENGINE_SPAN, WAIT_SPAN
from orch_sidecar.tools.local import check, engine, stack, up
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


class Receiver:
    """Has a trace for each request."""

    def wait(self, trace_id: str, *_: object) -> list[ReceivedSpan]:
        own = {"measurement_type": "batched_online"}
        figures = {"orch.batch_size.max": 4, "gen_ai.usage.output_tokens": 24}
        attributes = {check.REQUEST_SPAN: own | figures}
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


def checked(sidecar: Sidecar) -> check.Findings:
    return check.run(cast(Stack, sidecar), cast(OtlpReceiver, Receiver()))


def test_figures_are_read_when_the_engine_has_reported_all_of_them(
    sidecar: Sidecar, capsys: pytest.CaptureFixture[str]
) -> None:
    sidecar.readings = [IDLE, IDLE, HALF, DONE, DONE]
    found = checked(sidecar)
    assert found.problems == []
    assert found.summary == (
        "4 requests answered with 96 tokens, 4 at a time in 4 slots; the engine and 4 traces agree"
    )
    printed = capsys.readouterr().out
    assert '"requests_total": 4' in printed
    assert '"steps_total": 23' in printed
    assert '"running": 0' in printed


def test_requests_that_the_engine_does_not_report_are_a_problem(
    sidecar: Sidecar, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "_COUNTED_WITHIN_S", 0.02)
    sidecar.readings = [IDLE]
    assert checked(sidecar).problems == [
        "4 requests were sent, but the engine reports 0 in 0 steps",
        "the generated tokens differ: 96 by the answers, 96 by the traces, 0 by the engine",
    ]


@pytest.mark.parametrize("found", [[], ["an answer was empty"]])
def test_last_line_is_the_verdict(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], found: list[str]
) -> None:
    monkeypatch.setattr(up, "_run", lambda *_: check.Findings(found, "4 requests"))
    if found:
        with pytest.raises(SystemExit, match="orch up --check: an answer was empty"):
            up.main(["--check"], cli.read_settings)
    else:
        up.main(["--check"], cli.read_settings)
        assert capsys.readouterr().out.splitlines()[-1] == "all is well: 4 requests"


def test_one_beside_another_has_logs_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans: list[Plan] = []

    def stack(plan: Plan) -> None:
        plans.append(plan)
        raise StackError("enough is known")

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


ROOT = Path(__file__).parents[4]

pytestmark = pytest.mark.usefixtures("no_settings_in_the_environment")


class Started(BaseException):
    """Something would run now."""


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def start(*_: object, **__: object) -> None:
        raise Started

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(subprocess, "run", start)
    monkeypatch.setattr(stack, "Child", start)
    monkeypatch.setattr(os, "execv", start)
    for module in (up, engine):
        monkeypatch.setattr(module, "find_spec", lambda name: object())
    monkeypatch.setattr("orch_sidecar.tools.local.up.signal.signal", lambda *_: None)


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Returns the one line that a command prints before it exits for bad usage."""
    with pytest.raises(SystemExit) as exited:
        cli.main(words)
    printed = capsys.readouterr()
    assert (exited.value.code, printed.out) == (2, "")
    [line] = printed.err.splitlines()
    assert line.startswith(f"orch {words[0]}: ")
    return line


@pytest.mark.parametrize(
    ("words", "value", "rule"),
    [
        ("up --port 99999", "'99999'", "less than or equal to 65535"),
        ("up --port http", "'http'", "valid integer"),
        ("up --port=-1", "'-1'", "greater than or equal to 0"),
        ("up --slots 0", "--slots is 0", "must be 1 in profile 'home'"),
        ("up --profile home --slots 4", "--slots is 4", "must be 1 in profile 'home'"),
        ("up --profile cloud --slots 1", "--slots is 1", "must be at least 2 in profile 'cloud'"),
        ("up --slots many", "'many'", "int"),
        ("up --profile nowhere", "'nowhere'", "use one of cloud, home, offline"),
        ("up --model /no/such", "'/no/such'", "must be a directory that exists"),
        ("up --model ./such -- --x", "'./such'", "must be a directory that exists"),
        ("up -- --max-num-seqs=4", "--max-num-seqs is 4", "must be 1 in profile 'home'"),
        ("up --sluts 4", "--sluts", "unrecognized"),
        ("engine --port 99999 m", "'99999'", "from 0 to 65535"),
        ("engine m --max_num_seqs 4", "--max-num-seqs is 4", "must be 1 in profile 'home'"),
        ("engine --profile cloud m --max-num-seqs 0", "is 0", "at least 2 in profile 'cloud'"),
        ("engine ~/no-such-model", "'~/no-such-model'", "must be a directory that exists"),
        ("engine --model a/b/c", "'a/b/c'", "must be a directory that exists"),
        ("engine --profile nowhere m", "'nowhere'", "use one of cloud, home, offline"),
        ("sidecar --port 99999", "'99999'", "less than or equal to 65535"),
        ("sidecar --slots 4", "--slots", "unrecognized"),
    ],
)
def test_mistake_is_one_line_with_value_and_rule(
    words: str, value: str, rule: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refused(capsys, *words.split())
    assert value in line
    assert rule in line


@pytest.mark.parametrize("name", ["ORCH_PORT", "ORCH_ADMIN_PORT"])
def test_environment_of_the_sidecar_is_read_before_anything_starts(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "99999")
    for command in ("up", "sidecar"):
        assert f"{name}): '99999'" in refused(capsys, command)


@pytest.mark.parametrize(
    "words",
    [
        *(f"engine {model}" for model in ("m", "org/model", "s3://bucket/deep/model", ".", "/")),
        "up --port 0 --model org/model",
        "engine m --profile cloud --max-num-batched-tokens 8k",
    ],
)
def test_what_vllm_may_know_is_left_to_it(words: str) -> None:
    with pytest.raises(Started):
        cli.main(words.split())


@pytest.mark.parametrize("model", ["m", ""])
def test_home_that_cannot_be_written_to_is_named(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    with pytest.raises(SystemExit) as exited:
        cli.main(["up", "--port", "0", *(["--model", model] if model else [])])
    text = str(exited.value.code)
    assert text.startswith("orch up: ")
    assert f"Not a directory: '{tmp_path}/file/.cache" in text
    assert "set HOME or XDG_CACHE_HOME" in text
    assert "\n" not in text


@pytest.mark.parametrize(("admin", "port"), [("0", None), ("{}", "{}")])
def test_admin_port_is_that_of_the_environment(
    admin: str, port: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = free_port()
    monkeypatch.setenv("ORCH_ADMIN_PORT", admin.format(wanted))
    monkeypatch.setenv("ORCH_PORT", "0")
    started: list[Stack] = []

    def start(self: Stack) -> None:
        started.append(self)
        raise Started

    monkeypatch.setattr(Stack, "start_engine", start)
    with pytest.raises(Started):
        cli.main(["up", "--model", "m"])
    [found] = started
    assert found.admin_port == (wanted if port else found.admin_port) != 0
    assert found.admin_url == f"http://127.0.0.1:{found.admin_port}"


def test_port_that_is_taken_is_rejected_before_anything_starts() -> None:
    port = free_port()
    Stack(Plan("home", "model", port=port)).require_ports()
    in_use, for_admin = r"Address already in use.*; choose another port", "with ORCH_ADMIN_PORT"
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        for ports, message in (
            ({"port": taken}, in_use),
            ({"admin_port": taken}, f"{in_use} {for_admin}"),
            ({"port": port, "admin_port": port}, f"choose another port {for_admin}"),
        ):
            with pytest.raises(StackError, match=message):
                Stack(Plan("home", "model", **ports)).require_ports()


def test_mistake_is_found_before_anything_heavy_is_imported() -> None:
    code = (
        "import sys; from orch_sidecar import cli\n"
        "try: cli.main(['up', '--slots', '4'])\n"
        "except SystemExit: print({'vllm', 'torch', 'aiohttp'} & set(sys.modules))"
    )
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.Popen([sys.executable, "-c", code], env=environ, stdout=subprocess.PIPE)
    assert done.communicate()[0] == b"set()\n"
