"""`orch up`: runs an engine and a sidecar on this machine, ready for an OpenAI client."""

from __future__ import annotations

import argparse
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Final

from orch_sidecar.config.settings import SidecarSettings
from orch_sidecar.tools.arguments import OneLineParser
from orch_sidecar.tools.local import check
from orch_sidecar.tools.local.check import OtlpReceiver
from orch_sidecar.tools.local.engine import NO_VLLM, objections
from orch_sidecar.tools.local.stack import Plan, Stack, StackError, get_json
from orch_sidecar.tools.terminal import Progress, bad, good
from vllm_plugin.contracts import profile as profiles
from vllm_plugin.contracts.senders import SIDECAR_KEY_VARIABLE

# Large weights may take long to load; the progress line shows that it is alive.
_READY_WITHIN_S: Final = 3600.0
_TINY: Final = "tiny"
# Of vLLM's log, for the phase of its start: it is silent within a phase, or repeats a line.
_LOG_LINES: Final = 400
# What an engine is doing while it starts, by the lines that vLLM (0.32, 0.33) and the plugin log,
# in the order in which it usually does it; the last line that matches counts.
_PHASES: Final = tuple(
    (re.compile(pattern), phase)
    for pattern, phase in (
        (r"Resolved architecture|Using max model len", "reading its configuration"),
        (r"orch: profile |Initializing a V1 LLM engine|distributed_init_method=",
         "starting its workers"),
        (r"Time spent downloading|Starting to load model", "loading the weights"),
        (r"Loading (?:safetensors|pt) checkpoint shards:\s+(\d+%)", "loading the weights"),
        (r"Loading weights took|Model loading took", "preparing the model"),
        (r"Dynamo bytecode transform|Compiling a graph|Warming up model for the compilation",
         "compiling the model"),
        (r"Available KV cache memory|KV cache size:", "reserving the KV cache"),
        (r"Capturing CUDA graphs.*?:\s+(\d+%)", "capturing CUDA graphs"),
        (r"orch: warming up", "warming up"),
        (r"init engine \(profile|Starting vLLM|Started server process", "starting its API"),
    )
)  # fmt: skip

FIRST_PHASE: Final = "importing vLLM"


def cache_directory() -> Path:
    """Returns the directory of models and logs. Raises StackError if it cannot be written to."""
    try:
        directory = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "orch"
        directory.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=directory).close()
    except (OSError, RuntimeError) as error:
        raise StackError(
            f"{error}: set HOME or XDG_CACHE_HOME to a writable directory, for models and logs"
        ) from error
    return directory


def tiny_model() -> Path:
    """Returns the tiny model's directory. Makes the model if needed, in a separate process: that
    needs torch and this process does not."""
    directory = cache_directory() / "models" / "tiny-4"
    if not (directory / "complete").exists():
        print(f"making a tiny model in {directory}", flush=True)
        command = [sys.executable, "-m", "orch_sidecar.tools.local.tiny_model", str(directory)]
        made = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
        if made.returncode:
            raise StackError(f"the tiny model could not be made:\n{made.stderr}")
    return directory


def main(arguments: list[str], read_settings: Callable[[list[str]], SidecarSettings]) -> None:
    """Runs until Ctrl-C or SIGTERM; with --check until the check is done.

    `read_settings`: reads those of the sidecar from its flags, the environment and the file.
    """
    own = parser()
    options = own.parse_args(arguments)
    flags = {"profile": options.profile, "host": options.host, "port": options.port}
    given = [f"--{name}={value}" for name, value in flags.items() if value is not None]
    settings = read_settings(given)
    profile = profiles.load(settings.profile)
    if wrong := objections(options.engine_arguments, profile, options.model, options.slots):
        own.error("; ".join(wrong))
    if find_spec("vllm") is None:
        sys.exit(f"orch up: {NO_VLLM}")
    stop = threading.Event()

    def on_signal(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            os._exit(128 + number)  # a second signal exits at once, and the children with it
        stop.set()
        raise _Leaving

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)
    try:
        found = _run(options, settings)
    except _Leaving:
        return
    except StackError as error:
        sys.exit(f"orch up: {error}")
    if found.problems:
        failed = bad("orch up --check:", sys.stderr)
        sys.exit(f"\n{failed} " + "\n                 ".join(found.problems))
    print(f"\n{good('all is well:', sys.stdout)} {found.summary}", flush=True)


class _Leaving(BaseException):
    """Ctrl-C or SIGTERM."""


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    found = OneLineParser(
        prog="orch up",
        description=(
            "Starts vLLM under a profile with the sidecar in front of it, waits until they are "
            "ready, and serves until Ctrl-C. Without --model it makes a small model with random "
            "weights, so that nothing needs to be downloaded. Each start names the folder of its "
            "logs, one for each port, and appends to them."
        ),
        epilog="Arguments after `--` go to vLLM: orch up --model ./m -- --max-model-len 4096",
    )
    found.add_argument(
        "--profile",
        help="home, cloud, offline, or the path of a YAML file (default: ORCH_PROFILE, or home)",
    )
    found.add_argument("--model", help="a model directory or name for vLLM (default: a tiny one)")
    found.add_argument("--slots", type=int, help="concurrent sequences (default: the profile's)")
    found.add_argument("--host", help="of the sidecar (default: ORCH_HOST, or 127.0.0.1)")
    found.add_argument("--port", help="of the sidecar (default: ORCH_PORT, or 8080)")
    found.add_argument(
        "--check", action="store_true", help="send requests, show and verify the results, and exit"
    )
    found.add_argument("engine_arguments", nargs="*", metavar="-- ARGUMENTS", help="for vLLM")
    return found


def _run(options: argparse.Namespace, settings: SidecarSettings) -> check.Findings:
    environ = {
        SIDECAR_KEY_VARIABLE: os.environ.get(SIDECAR_KEY_VARIABLE, secrets.token_urlsafe(32))
    }
    model, name, extra = options.model, None, tuple(options.engine_arguments)
    if not model:
        model, name = str(tiny_model()), _TINY
        environ["HF_HUB_OFFLINE"] = "1"
        extra = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes", *extra)
    with ExitStack() as parts:
        receiver = None
        if options.check:
            receiver = parts.enter_context(OtlpReceiver())
            environ |= {
                "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint,
                "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
                "OTEL_BSP_SCHEDULE_DELAY": "500",
            }
        plan = Plan(
            profile=settings.profile,
            model=model,
            served_name=name,
            slots=options.slots,
            host=settings.host,
            port=settings.port,
            admin_port=settings.admin_port,
            engine_arguments=extra,
            environ=environ,
            log_directory=cache_directory() / "logs" / str(settings.port),
        )
        stack = Stack(plan)
        stack.require_ports()
        parts.callback(_stop, stack)
        print(f"profile {settings.profile}, model {name or model}; logs in {plan.log_directory}")
        stack.start_engine()
        stack.start_sidecar()
        with Progress("the engine: starting", sys.stdout) as progress:
            stack.wait_ready(_READY_WITHIN_S, lambda waited, what: _show(progress, stack))
        if receiver is not None:
            return check.run(stack, receiver)
        _print_ready(stack)
        while True:
            stack.check_alive()
            time.sleep(1.0)


def _show(progress: Progress, stack: Stack) -> None:
    """Shows what startup waits for."""
    assert stack.engine is not None
    phase, how_far = phase_of(stack.engine.last_lines(_LOG_LINES))
    progress.phase(f"the engine: {phase}", how_far)


def phase_of(lines: Iterable[str]) -> tuple[str, str]:
    """Returns the phase that the last of these lines belong to, and how far it is, if known."""
    found = FIRST_PHASE, ""
    for line in lines:
        for pattern, phase in _PHASES:
            if (match := pattern.search(line)) is not None:
                found = phase, (match[1] if match.lastindex else "")
    return found


def _print_ready(stack: Stack) -> None:
    _, document = get_json(f"{stack.url}/v1/capabilities")
    engine = document["engines"][0]
    model, url = engine["models"][0], stack.url
    print(
        f"""ready: {engine["measurement_type"]}, {engine["slots_total"]} slots, at {url}

  curl {url}/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{{"model": "{model}", "messages": [{{"role": "user", "content": "Hello"}}], \
"max_tokens": 16}}'

  {sys.executable} -c "from openai import OpenAI; \
print(OpenAI(base_url='{url}/v1', api_key='none').chat.completions.create(model='{model}', \
messages=[{{'role': 'user', 'content': 'Hello'}}], max_tokens=16).choices[0].message.content)"

Look at it in a browser: {url}/ui
With buttons to cancel a request or to drain the engine: {stack.admin_url}/ui

Press Ctrl-C to stop.""",
        flush=True,
    )


def _stop(stack: Stack) -> None:
    child = stack.exited()
    print("\nstopping" if child is None else f"\nthe {child.name} has ended: stopping", flush=True)
    stack.stop()
    print("stopped", flush=True)
