"""`orch up`: runs an engine and a sidecar on this machine, ready for an OpenAI client."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Final

from orch_sidecar.tools.local import check
from orch_sidecar.tools.local.engine import NO_VLLM
from orch_sidecar.tools.local.otlp import OtlpReceiver
from orch_sidecar.tools.local.stack import Plan, Stack, StackError, get_json
from vllm_plugin import profile as profiles

# Large weights may take long to load; the progress line shows that it is alive.
_READY_WITHIN_S: Final = 3600.0
_TINY: Final = "tiny"


def cache_directory() -> Path:
    """Returns the directory of models made here and of logs."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "orch"


def tiny_model() -> Path:
    """Returns the tiny model's directory. Makes the model if needed, in a separate process: that
    needs torch and this process does not."""
    directory = cache_directory() / "models" / "tiny-1"
    if not (directory / "complete").exists():
        print(f"making a tiny model in {directory}", flush=True)
        command = [sys.executable, "-m", "orch_sidecar.tools.local.tiny_model", str(directory)]
        made = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
        if made.returncode:
            raise StackError(f"the tiny model could not be made:\n{made.stderr}")
    return directory


def main(arguments: list[str]) -> None:
    """Runs until Ctrl-C or SIGTERM; with --check until the check is done."""
    options = _parser().parse_args(arguments)
    profiles.load(options.profile)
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
        problems = _run(options)
    except _Leaving:
        return
    except StackError as error:
        sys.exit(f"orch up: {error}")
    if problems:
        sys.exit("\norch up --check: " + "\n                 ".join(problems))
    print("\norch up --check: passed", flush=True)


class _Leaving(BaseException):
    """Ctrl-C or SIGTERM."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="orch up",
        description=(
            "Starts vLLM under a profile with the sidecar in front of it, waits until they are "
            "ready, and serves until Ctrl-C. Without --model it makes a small model with random "
            "weights, so that nothing needs to be downloaded."
        ),
        epilog="Arguments after `--` go to vLLM: orch up --model ./m -- --max-model-len 4096",
    )
    parser.add_argument(
        "--profile",
        default=os.environ.get("ORCH_PROFILE", "home"),
        help="home, cloud, offline, or the path of a YAML file (default: ORCH_PROFILE, or home)",
    )
    parser.add_argument("--model", help="a model directory or name for vLLM (default: a tiny one)")
    parser.add_argument("--slots", type=int, help="concurrent sequences (default: the profile's)")
    parser.add_argument("--host", default="127.0.0.1", help="of the sidecar (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=8080, help="of the sidecar (default: 8080)")
    parser.add_argument(
        "--check", action="store_true", help="send requests, show and verify the results, and exit"
    )
    parser.add_argument("engine_arguments", nargs="*", metavar="-- ARGUMENTS", help="for vLLM")
    return parser


def _run(options: argparse.Namespace) -> list[str]:
    environ: dict[str, str] = {}
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
            profile=options.profile,
            model=model,
            served_name=name,
            slots=options.slots,
            host=options.host,
            port=options.port,
            engine_arguments=extra,
            environ=environ,
            log_directory=cache_directory() / "logs",
        )
        stack = Stack(plan)
        stack.require_port()
        parts.callback(_stop, stack)
        print(f"profile {options.profile}, model {name or model}; logs in {plan.log_directory}")
        stack.start_engine()
        stack.start_sidecar()
        stack.wait_ready(_READY_WITHIN_S, _Progress(stack))
        if receiver is not None:
            return check.run(stack, receiver)
        _print_ready(stack)
        while True:
            stack.check_alive()
            time.sleep(1.0)


class _Progress:
    """Prints what startup waits for: on a terminal in one line, else a line every few seconds."""

    EVERY_S: Final = 5.0

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._terminal = sys.stdout.isatty()
        self._next_s = 0.0

    def __call__(self, waited_s: float, what: str) -> None:
        if not self._terminal and waited_s < self._next_s:
            return
        self._next_s = waited_s + self.EVERY_S
        engine = self._stack.engine
        lines = engine.last_lines(1) if engine is not None else []
        line = lines[0].split("] ", 1)[-1][:60] if lines else ""
        text = f"waiting for the engine, {waited_s:.0f} s: {line or what[:60]}"
        print(f"\r\x1b[K{text}" if self._terminal else text, end="", flush=True)
        if not self._terminal:
            print(flush=True)


def _print_ready(stack: Stack) -> None:
    _, document = get_json(f"{stack.url}/v1/capabilities")
    engine = document["engines"][0]
    model, url = engine["models"][0], stack.url
    if sys.stdout.isatty():
        print("\r\x1b[K", end="")
    print(
        f"""ready: {engine["measurement_type"]}, {engine["slots_total"]} slots, at {url}

  curl {url}/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{{"model": "{model}", "messages": [{{"role": "user", "content": "Hello"}}], \
"max_tokens": 16}}'

  {sys.executable} -c "from openai import OpenAI; \
print(OpenAI(base_url='{url}/v1', api_key='none').chat.completions.create(model='{model}', \
messages=[{{'role': 'user', 'content': 'Hello'}}], max_tokens=16).choices[0].message.content)"

Press Ctrl-C to stop.""",
        flush=True,
    )


def _stop(stack: Stack) -> None:
    print("\nstopping", flush=True)
    stack.stop()
    print("stopped", flush=True)
