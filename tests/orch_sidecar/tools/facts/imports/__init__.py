"""Recorded files of other tools, and the capabilities of the engine before and after.

Made by `python -m tests.benchmarks.imports --fixtures` and this folder, which leaves out texts
and what is of the machine. Five are of runs by hand: AIPerf's summary of 40 requests with
`--export-level records`, less what is not used (`aiperf_cloud`), that of MLPerf
endpoints 0.1.0 of as many, less its histograms (`mlperf_cloud`), a load on a port where nothing
listens (`vllm_bench_all_failed`), Poisson arrivals of GuideLLM that came too early
(`guidellm_early`), and `vllm bench throughput --output-json` (`vllm_throughput`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from orch_sidecar.tools.facts.evidence import guidellm, vllm_bench
from orch_sidecar.tools.facts.evidence.imported import ImportedRun, Rejection, read_run
from orch_sidecar.tools.facts.labels.observation import States
from orch_sidecar.tools.facts.labels.snapshot import parse_snapshot

HERE = Path(__file__).parent


def path(name: str) -> Path:
    return HERE / f"{name}.json"


def document(name: str) -> Any:
    return json.loads(path(name).read_text(encoding="utf-8"))


def run_in(name: str, file: Any) -> ImportedRun | Rejection:
    """Returns the run in a file of the tool that a recorded file is of."""
    run = vllm_bench.run if name.startswith("vllm") else guidellm.run
    return read_run(lambda: run(file))


def proof(name: str) -> States:
    """Returns the snapshots from before and after the run of that file."""
    before, after = (parse_snapshot(document(f"{name}_{end}")) for end in ("before", "after"))
    return States(before, after)
