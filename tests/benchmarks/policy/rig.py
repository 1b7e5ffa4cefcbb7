"""Starts an engine and the sidecars in front of it as processes that end with this one."""

from __future__ import annotations

import json
import os
import re
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from orch_sidecar.tools.local import tiny_model
from orch_sidecar.tools.local.stack import Child, Plan, Stack, free_port, get_json
from orch_sidecar.tools.local.up import cache_directory
from tests.benchmarks.policy.work import MODEL
from tests.engine import sliding_model

_ENGINE_WITHIN_S: Final = 300.0
_SIDECAR_WITHIN_S: Final = 30.0
_IDLE_WITHIN_S: Final = 60.0

# Every prompt is computed: a prefix cache would hide what prefill does.
_ARGUMENTS: Final = ("--no-enable-prefix-caching",)

# `sliding`: most of its layers look a few tokens back.
SIZES: Final = (*sorted(tiny_model.SIZES), "sliding")

_COUNTERS: Final = {
    "generated": "vllm:generation_tokens_total",
    "prompts": "vllm:prompt_tokens_total",
    "preemptions": "vllm:num_preemptions_total",
    "finished": "vllm:request_success_total",
}
_LINE: Final = re.compile(r"^(vllm:\w+)\{[^}]*\} (\S+)$", re.MULTILINE)


def logs() -> Path:
    return cache_directory() / "bench" / "policy"


@dataclass(frozen=True, slots=True)
class Counters:
    """The engine's own, since its start: tokens generated and read, preemptions, requests."""

    generated: int
    prompts: int
    preemptions: int
    finished: int
    preempted_reported: int  # preemptions_total of /v1/capabilities
    at_s: float

    def since(self, before: Counters) -> Counters:
        mine, theirs = asdict(self), asdict(before)
        return Counters(**{name: mine[name] - theirs[name] for name in mine})

    @property
    def tokens_per_s(self) -> float:
        return self.generated / self.at_s

    @property
    def total_per_s(self) -> float:
        """Tokens read and generated: vLLM's benchmarks call it the total token throughput."""
        return (self.prompts + self.generated) / self.at_s


def model_directory(size: str) -> Path:
    directory = cache_directory() / "models" / f"{size}-1"
    if size == "sliding":
        sliding_model.make(directory, model_directory("tiny"))
    else:
        tiny_model.make(directory, size)
    return directory


class NotServing(Exception):
    """Something does not serve; the message says what and why."""


def _wait(within_s: float, what: str, done: Callable[[], bool], check: Callable[[], None]) -> None:
    until = time.monotonic() + within_s
    while True:
        check()
        last: Exception | None = None
        try:
            if done():
                return
        except (OSError, ValueError) as error:  # it does not listen yet, or does not answer yet
            last = error
        if time.monotonic() > until:
            why = "" if last is None else f": {last!r}"
            raise NotServing(f"{what} after {within_s:g} s{why}") from last
        time.sleep(0.1)


class Engine:
    """vLLM with the plugin. Use as a context manager; `wait` before use."""

    def __init__(
        self,
        size: str,
        slots: int | None,
        *arguments: str,
        profile: str = "cloud",
        name: str = "engine",
        core: int | None = None,
        environ: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`core`: the one that its model computes on; None: vLLM's choice. `environ`: added."""
        environ = {"HF_HUB_OFFLINE": "1", **environ}
        if core is not None:
            environ["VLLM_CPU_OMP_THREADS_BIND"] = str(core)
        self._stack = Stack(
            Plan(
                profile=profile,
                model=str(model_directory(size)),
                served_name=MODEL,
                slots=slots,
                engine_arguments=(*_ARGUMENTS, *arguments),
                environ=environ,
                log_directory=logs() / name,
            )
        )
        self.port = self._stack.engine_port
        self.url = self._stack.engine_url

    def __enter__(self) -> Engine:
        self._stack.start_engine()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.stop()

    def wait(self) -> dict[str, Any]:
        """Returns its capabilities once it serves."""
        _wait(
            _ENGINE_WITHIN_S,
            "the engine does not serve",
            lambda: get_json(f"{self.url}/v1/capabilities")[0] == 200,
            self._stack.check_alive,
        )
        return self.capabilities()

    def capabilities(self) -> dict[str, Any]:
        _, document = get_json(f"{self.url}/v1/capabilities", 10.0)
        state = document["engines"][0]
        assert isinstance(state, dict)
        return state

    def counters(self) -> Counters:
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as response:
            text, at_s = response.read().decode(), time.monotonic()
        sums: dict[str, float] = {}
        for name, value in _LINE.findall(text):
            sums[name] = sums.get(name, 0.0) + float(value)
        preempted = self.capabilities()["preemptions_total"]
        values = {ours: int(sums[theirs]) for ours, theirs in _COUNTERS.items()}
        return Counters(**values, preempted_reported=preempted, at_s=at_s)

    def rest(self) -> None:
        """Returns when nothing is left in it."""

        def idle() -> bool:
            state = self.capabilities()
            return not (state["running"] or state["waiting"] or state["leased"] or state["foreign"])

        _wait(_IDLE_WITHIN_S, "the engine is not idle", idle, self._stack.check_alive)


class Sidecar:
    """A sidecar in front of one engine, or of several pools. Use as a context manager."""

    def __init__(
        self,
        profile: Path | str,
        engine_url: str | None = None,
        *,
        pools: Sequence[dict[str, Any]] = (),
        arguments: Sequence[str] = (),
        name: str = "sidecar",
        environ: Mapping[str, str] | None = None,
        program: Sequence[str] = ("orch_sidecar",),
    ) -> None:
        """`program`: the module that is `orch`, and arguments before its own."""
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._command = [sys.executable, "-m", *program, "sidecar"]
        self._command += ["--profile", str(profile), "--port", str(self.port)]
        self._command += ["--drain-timeout-s", "1", *arguments]
        if engine_url is not None:
            self._command += ["--engine-url", engine_url]
        self._environ = {k: v for k, v in os.environ.items() if not k.startswith("ORCH_")}
        self._environ |= environ or {}
        if pools:
            self._environ["ORCH_POOLS"] = json.dumps(list(pools))
        self._name = name
        self._child: Child | None = None

    def __enter__(self) -> Sidecar:
        log = logs() / f"{self._name}.log"
        child = self._child = Child("sidecar", self._command, self._environ, log)

        def check() -> None:
            if child.exit_code is not None:
                raise NotServing("the sidecar ended:\n" + "\n".join(child.last_lines(15)))

        try:
            ready = f"{self.url}/readyz"
            _wait(
                _SIDECAR_WITHIN_S,
                f"the sidecar is not ready ({log})",
                lambda: get_json(ready)[1].get("state") == "ready",
                check,
            )
        except BaseException:
            child.stop(5.0)
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        if self._child is not None:
            self._child.stop(10.0)

    @property
    def pid(self) -> int:
        """Of its process. Use it while it runs."""
        assert self._child is not None
        return self._child.pid

    def capabilities(self) -> dict[str, Any]:
        _, document = get_json(f"{self.url}/v1/capabilities", 10.0)
        return document

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that have these labels."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as response:
            lines = response.read().decode().splitlines()
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        return sum(
            float(line.rpartition(" ")[2])
            for line in lines
            if line.startswith(f"{name}{{") and all(each in line for each in wanted)
        )
