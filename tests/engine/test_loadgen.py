"""MLCommons' own load generator on the real engine: its figures and ours are the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from orch_sidecar.tools.local.stack import Stack

pytestmark = pytest.mark.long

LOADS = {
    "home": ("single-stream", "--requests", "64", "--duration", "5"),
    "cloud": ("batched-online", "--rate", "12", "--requests", "80", "--duration", "5"),
    "offline": ("offline", "--requests", "128", "--duration", "0"),
}
AGREE = 0.005
COMPARED = {"tokens/s", *(f"latency {at}, ms" for at in ("mean", "p50", "p90", "p95", "p99"))}
# It learns of a token over the way between two threads: of a first token that is as long as of the
# last one, so it is judged as a share of the latency. Offline it reports none.
FIRST = {f"TTFT {at}, ms" for at in ("mean", "p50", "p90")}


@pytest.mark.parametrize("profile", LOADS)
def test_figures_of_loadgen_and_of_the_run_agree(
    profile: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    stack = request.getfixturevalue(profile)
    assert isinstance(stack, Stack)
    output = tmp_path / "run.json"
    command = (
        *(sys.executable, "-m", "orch_sidecar", "bench", *LOADS[profile], "--url", stack.url),
        *("--input-tokens", "32", "--output-tokens", "64", "--loadgen", "--output", str(output)),
    )
    ran = subprocess.run(command, capture_output=True, text=True)
    assert "By MLCommons' loadgen" in ran.stdout, ran.stdout + ran.stderr
    result = json.loads(output.read_text())
    assert result["counts"]["answered"] == result["counts"]["sent"]
    figures = result["loadgen"]["figures"]
    assert set(figures) >= COMPARED
    for name in COMPARED:
        theirs, ours = figures[name]
        assert ours == pytest.approx(theirs, rel=AGREE), name
    way_ms = AGREE * figures["latency mean, ms"][0]
    assert (set(figures) >= FIRST) is (profile != "offline")
    for name in FIRST & set(figures):
        theirs, ours = figures[name]
        assert ours == pytest.approx(theirs, abs=way_ms), name
    assert (tmp_path / "run-loadgen" / "mlperf_log_summary.txt").is_file()
