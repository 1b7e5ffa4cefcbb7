"""Recorded files of other tools, and the capabilities of the engine before and after.

Made by `python -m tests.benchmarks.imports --fixtures` and this folder, which leaves out texts
and what is of the machine. Four are of runs by hand: AIPerf's summary of 40 requests with
`--export-level records`, less what is not used (`aiperf_cloud`), a load on a port where nothing
listens (`vllm_bench_all_failed`), Poisson arrivals of GuideLLM that came too early
(`guidellm_early`), and `vllm bench throughput --output-json` (`vllm_throughput`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

from orch_sidecar.tools.facts.evidence import aiperf, guidellm, vllm_bench
from orch_sidecar.tools.facts.evidence.imported import read_run
from orch_sidecar.tools.facts.labels.load import Load
from orch_sidecar.tools.facts.labels.observation import Run, States
from orch_sidecar.tools.facts.labels.snapshot import parse_snapshot

HERE = Path(__file__).parent
LEFT_OUT: Any = object()
_TOOLS = {"vllm": vllm_bench.run, "guidellm": guidellm.run, "aiperf": aiperf.run}


def path(name: str) -> Path:
    return HERE / f"{name}.json"


def document(name: str) -> Any:
    return json.loads(path(name).read_text(encoding="utf-8"))


def run_in(name: str, file: Any) -> Run | str:
    """Returns the run in a file of the tool that a recorded file is of."""
    run = next(run for tool, run in _TOOLS.items() if name.startswith(tool))
    return read_run(name, lambda: run(file))


def changed(name: str, values: Mapping[str, Any]) -> Any:
    """Returns a recorded file with other values at some places, such as `input_lens.0`. `LEFT_OUT`:
    without it."""
    file = document(name)
    for path, value in values.items():
        *above, last = (int(step) if step.isdigit() else step for step in path.split("."))
        place = reduce(getitem, above, file)
        if value is LEFT_OUT:
            del place[last]
        else:
            place[last] = value
    return file


def measured(name: str, file: Any = None) -> Run:
    """Returns the run in a file of that tool, by default the recorded one."""
    found = run_in(name, document(name) if file is None else file)
    assert isinstance(found, Run), found
    return found


def load(run: Run) -> Load:
    assert run.load is not None
    return run.load


def refused(name: str, file: object) -> str:
    """Returns why a file is rejected."""
    found = run_in(name, file)
    assert isinstance(found, str), found
    return found.removeprefix(f"{name}: ")


def proof(name: str) -> States:
    """Returns the snapshots from before and after the run of that file."""
    before, after = (parse_snapshot(document(f"{name}_{end}")) for end in ("before", "after"))
    return States(before, after)
