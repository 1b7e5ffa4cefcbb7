"""The two tools: their environments, and their commands for a load.

GuideLLM pins packages to other versions than vLLM, so it gets its own virtual environment below
the cache directory, created on demand; its size is recorded beside it.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from orch_sidecar.tools.facts.tables.row import Label
from orch_sidecar.tools.local.up import cache_directory, tiny_model

GUIDELLM: Final = "0.8.1"
_RUN_WITHIN_S: Final = 400.0

# GuideLLM's own limit is 10 processes: each costs seconds to start, and for Poisson arrivals each
# draws the same gaps.
ONE_WORKER: Final = {"GUIDELLM__MAX_WORKER_PROCESSES": "1"}


class ToolFailed(Exception):
    """A tool did not do what it was asked for; the message has the end of what it printed."""


@dataclass(frozen=True, slots=True)
class Load:
    """`rate` in requests per second: None for one request after the other, each when the one
    before has ended. `poisson`: gaps between arrivals are exponential, or else all the same."""

    requests: int
    rate: float | None = None
    poisson: bool = True
    prompt_tokens: int = 32
    output_tokens: int = 20

    @property
    def name(self) -> str:
        if self.rate is None:
            return "one after the other"
        return f"{'poisson' if self.poisson else 'constant'}, {self.rate:g}/s"


@dataclass(frozen=True, slots=True)
class Weight:
    """What an installation cost."""

    install_s: float
    packages: int
    megabytes: int


@dataclass(frozen=True, slots=True)
class Ran:
    """A tool's run. `cpu_s`: of all its processes, from their start to their end."""

    result: Path
    wall_s: float
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Target:
    """What is loaded: the model by the name it is served under."""

    url: str
    model: str
    environ: Mapping[str, str] = field(default_factory=dict)


def guidellm_environment() -> Path:
    """Its virtual environment, with what it weighs in `weight.json`."""
    directory = cache_directory() / f"guidellm-{GUIDELLM}"
    weight_file = directory / "weight.json"
    if weight_file.exists():
        return directory
    print(f"installing guidellm {GUIDELLM} into {directory}: some minutes, several GB", flush=True)
    _call([sys.executable, "-m", "venv", "--clear", str(directory)])
    python = str(directory / "bin" / "python")
    began = time.monotonic()
    _call([python, "-m", "pip", "install", "--quiet", f"guidellm=={GUIDELLM}"], within_s=1800)
    install_s = time.monotonic() - began
    listed = _call([python, "-m", "pip", "list", "--format", "json"])
    files = (path for path in directory.rglob("*") if path.is_file() and not path.is_symlink())
    weight = Weight(
        install_s=round(install_s, 1),
        packages=len(json.loads(listed)) - 2,  # pip and setuptools are there before
        megabytes=sum(path.stat().st_size for path in files) >> 20,
    )
    weight_file.write_text(json.dumps(asdict(weight)), encoding="utf-8")
    return directory


def guidellm_weight() -> Weight:
    path = guidellm_environment() / "weight.json"
    return Weight(**json.loads(path.read_text(encoding="utf-8")))


def guidellm(target: Target, load: Load, result: Path, *extra: str) -> Ran:
    """Runs GuideLLM. Raises ToolFailed."""
    if load.rate is None:
        profile = "kind=synchronous"
    else:
        profile = f"kind={'poisson' if load.poisson else 'constant'},rate={load.rate:g}"
    backend = f"kind=openai_http,target={target.url},model={target.model}"
    data = f"prompt_tokens={load.prompt_tokens},output_tokens={load.output_tokens}"
    command = [
        str(guidellm_environment() / "bin" / "guidellm"),
        "run",
        # No probe before it: what the engine takes in is counted.
        *("--backend", f"{backend},request_format=/v1/completions,validate_backend=false"),
        *("--tokenizer", f"kind=hf_auto,model={tiny_model()}"),
        *("--data", f"kind=synthetic_text,{data}"),
        *("--profile", profile),
        *("--constraint", f"kind=max_requests,count={load.requests}"),
        *("--output", f"kind=json,path={result}"),
        "--disable-console",
    ]
    return _run([*command, *extra], target.environ, result)


def vllm_bench(target: Target, load: Load, result: Path, *extra: str) -> Ran:
    """Runs `vllm bench serve`, with a file that has every request. Raises ToolFailed."""
    command = [
        *(sys.executable, "-m", "tests.benchmarks.imports.vllm_bench"),
        *("--backend", "openai", "--base-url", target.url),
        *("--model", target.model, "--tokenizer", str(tiny_model())),
        *("--dataset-name", "random", "--random-input-len", str(load.prompt_tokens)),
        *("--random-output-len", str(load.output_tokens)),
        *("--num-prompts", str(load.requests), "--temperature", "0", "--disable-tqdm"),
        *("--percentile-metrics", "ttft,tpot,itl,e2el"),
        *("--save-result", "--save-detailed"),
        *("--result-dir", str(result.parent), "--result-filename", result.name),
    ]
    if load.rate is None:
        command += ["--max-concurrency", "1"]
    else:
        command += ["--request-rate", f"{load.rate:g}"]
        command += ["--burstiness", "1" if load.poisson else "inf"]
    return _run([*command, *extra], target.environ, result)


def orch_bench(target: Target, load: Load, result: Path, label: Label, *extra: str) -> Ran:
    """Runs `orch bench`, with its row beside its result (`.csv`). Raises ToolFailed."""
    facts = result.with_suffix(".csv")
    facts.unlink(missing_ok=True)
    command = [
        *(sys.executable, "-m", "orch_sidecar", "bench", label.value.replace("_", "-")),
        *("--url", target.url, "--model", target.model, "--warm-up", "0", "--duration", "0"),
        *("--requests", str(load.requests), "--input-tokens", str(load.prompt_tokens)),
        *("--output-tokens", str(load.output_tokens)),
        *("--output", str(result), "--facts", str(facts)),
    ]
    if load.rate is not None:
        command += ["--rate", f"{load.rate:g}"]
    return _run([*command, *extra], target.environ, result)


def _run(command: list[str], environ: Mapping[str, str], result: Path) -> Ran:
    result.parent.mkdir(parents=True, exist_ok=True)
    result.unlink(missing_ok=True)
    began, cpu_s = time.monotonic(), _cpu_s()
    _call(command, environ, _RUN_WITHIN_S)
    if not result.exists():
        raise ToolFailed(f"{command[0]} wrote no {result}")
    return Ran(result, time.monotonic() - began, _cpu_s() - cpu_s)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _call(
    command: list[str], environ: Mapping[str, str] | None = None, within_s: float = 600.0
) -> str:
    done = subprocess.run(
        command,
        env=os.environ | {"HF_HUB_OFFLINE": "1"} | dict(environ or {}),
        capture_output=True,
        text=True,
        check=False,
        timeout=within_s,
    )
    if done.returncode:
        output = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
        raise ToolFailed(f"{' '.join(command)} ended with code {done.returncode}:\n{output}")
    return done.stdout
