"""The report of decode steps."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from orch_sidecar.tools.bench import cli
from orch_sidecar.tools.bench.decode.device import ON_GPU
from orch_sidecar.tools.bench.decode.result import DecodeResult
from orch_sidecar.tools.bench.report.decode import decode_report
from tests.orch_sidecar.tools.drawing.html_reader import Page

# Requests that nearly come at once: the last steps are smaller than the others.
TINY = ("decode", "--work", "9", "--nreq", "42", "--tokens", "3", "--bmax", "4", "--rate", "4000")


def document(folder: Path, *words: str) -> dict[str, Any]:
    path = folder / "decode.json"
    cli.main([*TINY, "--json", str(path), *words])
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def spread(value: float) -> dict[str, Any]:
    return dict.fromkeys(("mean", "p50", "p90", "p95", "p99", "most"), value) | {"early": {}}


def swept(batches: tuple[int, ...] = (1, 2, 4)) -> dict[str, Any]:
    points = [
        {
            "batch": batch, "steps": 100, "step_ms": spread(0.5 + batch), "gap_ms": None,
            "tokens_per_s": 100.0 * batch, "speed_up": float(batch), "efficiency": 1.0,
        }
        for batch in batches
    ]  # fmt: skip
    fit = {"t0": 0.5, "c": 1.0, "alpha": 1.0, "worst_error": 0.02}
    device = {
        "kind": "cuda", "name": "NVIDIA H100 <80GB> HBM3", "torch": "2.13", "dtype": "bfloat16",
        "threads": None, "weight_bytes": 10, "cache_bytes": 20, "kv_bytes_per_sequence": 1,
        "shape": asdict(ON_GPU),
    }  # fmt: skip
    config = {"nreq": 1, "rate_per_s": 1.0, "tokens": 1, "bmax": 1, "seed": 1}
    return {
        "schema_version": "orch.bench.decode/3", "config": config, "device": device,
        "runs": [], "points": points, "fit": fit,
    }  # fmt: skip


def page_of(found: dict[str, Any]) -> Page:
    return Page(decode_report(DecodeResult.model_validate(found)).html)


def test_each_window_has_its_figures_and_pictures(tmp_path: Path) -> None:
    page = page_of(document(tmp_path, "--window-ms", "6,2"))
    assert page.loads_nothing()
    assert page.charts == ["Throughput", "Steps by batch", "Time of a step"] * 2
    assert "Admission window of 6 ms" in page.text
    assert "make no row of a table" in page.text


def test_sweep_shows_the_curve_and_the_device() -> None:
    page = page_of(swept())
    assert page.charts == ["Throughput", "Time of a step"]
    assert "Decode steps on NVIDIA H100 <80GB> HBM3" in page.text
    assert "t(b) = 0.5 + 1 · b ms for a step of b sequences, largest deviation 2.0 %" in page.text
    assert "the weights fit in the processor's cache" in page.text


def test_curve_that_is_far_off_is_said_and_not_drawn() -> None:
    found = swept()
    assert "fit: 0.5 + 1 · b" in page_of(found).texts
    found["fit"]["worst_error"] = 0.43
    page = page_of(found)
    assert "fit: 0.5 + 1 · b" not in page.texts
    assert "describes the time of a step: the best is 43.0 % off" in page.text


def test_sweep_of_one_batch_has_no_fit() -> None:
    found = swept((4,))
    found["fit"] = None
    assert page_of(found).charts == ["Throughput", "Time of a step"]


def test_damaged_file_is_an_error() -> None:
    found = swept()
    found["points"][0]["batch"] = 10**12
    with pytest.raises(ValueError, match="less than or equal to 100000"):
        page_of(found)


def test_command_writes_the_report_beside_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.html"
    cli.main([*TINY, "--report", str(path)])
    assert f"report: {path}" in capsys.readouterr().out
    assert "Steps by batch" in Page(path.read_text(encoding="utf-8")).charts
    assert [each.name for each in tmp_path.iterdir()] == ["a.html"]
