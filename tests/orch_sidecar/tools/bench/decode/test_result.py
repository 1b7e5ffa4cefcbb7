"""Figures, and what is written of them."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from orch_sidecar.tools.bench.decode.device import Device, Shape
from orch_sidecar.tools.bench.decode.result import (
    Config,
    DecodeResult,
    Run,
    points_of,
    run_figures,
)
from orch_sidecar.tools.bench.decode.schedule import TimedStep, run_schedule
from orch_sidecar.tools.bench.report.decode import decode_report
from orch_sidecar.tools.bench.results.sweep import fit
from tests.orch_sidecar.tools.drawing.html_reader import Page

CONFIG = Config(nreq=2, rate_per_s=80.0, tokens=2, bmax=16, seed=1)
SHAPE = Shape(layers=1, hidden=64, heads=4, kv_heads=2, context=8)
RAN = Device("cpu", "a processor", "2.13", "bfloat16", 2**20, 2**21, 2048, SHAPE, threads=2)

# Two requests: the second joins in the second step. Steps of 10 ms from 6 to 36 ms.
GAPS_MS = iter([None, 0.5, 1.5])
OUTCOME = run_schedule([0.0, 10.0], 2, 16, 6.0, lambda b: TimedStep(b, 10.0, next(GAPS_MS)))
RUN = run_figures(6.0, OUTCOME)
TEN_MS = partial(TimedStep, ms=10.0)


def printed(*runs: Run, config: Config = CONFIG, **device: Any) -> str:
    """What the page of runs has in words. `device`: what is other than that of RAN."""
    ran = replace(RAN, **device)
    return decode_report(DecodeResult(config=config, device=ran, runs=runs)).plain


def swept(*steps: TimedStep) -> DecodeResult:
    points = points_of(steps)
    curve = fit([(point.batch, point.step_ms.p50) for point in points])
    return DecodeResult(config=CONFIG, device=RAN, points=points, fit=curve)


def test_first_four_lines_are_as_the_reference_program_prints_them() -> None:
    lines = printed(RUN).splitlines()
    assert lines[lines.index("Admission window of 6 ms") + 1 :] == [
        f"CONFIG nreq=2 lambda=80.0/s tokens=2 Bmax=16 window_ms=6.00 work={SHAPE.multiply_adds}",
        "GPU time: 30.000 ms  | tokens: 4  | tokens/sec (GPU): 133.33",
        "TTFT mean=16.000 ms  p95=16.000 ms",
        "E2E  mean=26.000 ms  p95=26.000 ms",
        "STEPS 3 of 1.33 sequences  | tokens/sec (with admission): 111.11",
        "GAPS between steps median=1.000 ms  p95=1.450 ms  max=1.500 ms",
    ]


def test_run_without_a_device_has_no_gaps() -> None:
    run = run_figures(6.0, run_schedule([0.0, 10.0], 2, 16, 6.0, TEN_MS))
    assert run.gap_ms is None
    assert "GAPS" not in printed(run)


def test_window_line_shows_the_change_of_p95_ttft() -> None:
    shorter = run_figures(2.0, run_schedule([0.0, 9.0], 2, 16, 2.0, TEN_MS))
    line = "WINDOW 6 -> 2 ms: p95 TTFT 16.000 -> 12.950 ms (-19.1 %)"
    assert printed(RUN, shorter).splitlines()[-1] == line


def test_overload_is_said_with_a_rate_that_is_kept_up_with() -> None:
    full = run_figures(6.0, run_schedule([0.0, 1.0], 2, 2, 6.0, TEN_MS))
    config = replace(CONFIG, bmax=2)
    assert "OVERLOADED" not in printed(full, config=config)
    line = printed(full, config=replace(config, rate_per_s=100.0)).splitlines()[-1]
    assert line.startswith("OVERLOADED 100 requests/s of 2 tokens need 200 tokens/s, steps of 2 g")
    assert line.endswith("--rate 80 is kept up with")
    assert "OVERLOADED" not in printed(RUN, config=replace(CONFIG, rate_per_s=1e6)), "none was full"


@pytest.mark.parametrize(
    ("device", "said", "unsaid"),
    [
        ({}, "\nDEVICE cpu (a processor) torch=2.13 threads=2 dtype=bfloat16 layers=1", "NOTE"),
        ({}, "weights=2.1 MB cache=1.0 MB", "BUSY"),
        ({"cache_bytes": 2**21}, "\nNOTE the weights fit in the processor's cache", "BUSY"),
        ({"cache_bytes": None, "threads": None}, "cache=unknown", "threads"),
        ({"cpus": 2, "busy_threads": 0.4}, "DEVICE", "BUSY"),
        ({"cpus": 2, "busy_threads": 1.5},
         "\nBUSY other programs keep 1.5 threads running on 2 CPUs", "NOTE"),
    ],
)  # fmt: skip
def test_lines_name_the_device_and_what_makes_its_steps_others(
    device: dict[str, Any], said: str, unsaid: str
) -> None:
    assert said in printed(**device)
    assert unsaid not in printed(**device)


def test_sweep_compares_medians_with_the_first_batch() -> None:
    found = swept(
        TimedStep(4, 2.0, 0.1),
        *(TimedStep(1, ms, 0.2) for ms in (1.0, 1.0, 50.0)),
        TimedStep(2, 1.6, 0.3),
    )
    assert [point.batch for point in found.points] == [1, 2, 4]
    assert [point.steps for point in found.points] == [3, 1, 1]
    assert [point.tokens_per_s for point in found.points] == pytest.approx([1000, 1250, 2000])
    assert [point.speed_up for point in found.points] == pytest.approx([1, 1.25, 2])
    assert [point.efficiency for point in found.points] == pytest.approx([1, 0.625, 0.5])


def test_sweep_without_a_point_at_1_compares_with_its_smallest() -> None:
    found = swept(TimedStep(2, 1.0, None), TimedStep(8, 2.0, None))
    assert [point.speed_up for point in found.points] == pytest.approx([1, 2])
    assert [point.efficiency for point in found.points] == pytest.approx([1, 0.5])
    assert "not fitted" in decode_report(found).plain


def test_document_contains_everything_and_is_json() -> None:
    steps = (TimedStep(batch, 1.0 + batch, 0.5) for batch in (1, 2, 4))
    result = swept(*steps).model_copy(update={"runs": (RUN,)})
    found = json.loads(result.model_dump_json())
    assert DecodeResult.model_validate(found) == result
    assert found["schema_version"] == "orch.bench.decode/3"
    assert found["config"] == {
        "nreq": 2, "rate_per_s": 80.0, "tokens": 2, "bmax": 16, "seed": 1,
        "reference": False, "work": None,
    }  # fmt: skip
    device, [run] = found["device"], found["runs"]
    assert (device["torch"], device["shape"]["heads"], run["window_ms"]) == ("2.13", 4, 6.0)
    assert [(each["batch"], each["steps"]) for each in run["points"]] == [(1, 2), (2, 1)]
    assert run["points"][0]["step_ms"]["p50"] == 10.0
    for spread in (run["gap_ms"], *run["requests"]["times_s"].values()):
        assert set(spread) >= {"mean", "p50", "p95", "most"}
    assert [point["batch"] for point in found["points"]] == [1, 2, 4]
    assert found["fit"]["t0"] == pytest.approx(1)


def page_of(found: DecodeResult) -> Page:
    return Page(decode_report(found).html)


def test_each_window_has_its_figures_and_pictures() -> None:
    page = page_of(DecodeResult(config=CONFIG, device=RAN, runs=(RUN, RUN)))
    assert page.loads_nothing()
    assert page.charts == ["Throughput", "Steps by batch", "Time of a step"] * 2
    assert "Admission window of 6 ms" in page.text
    assert "make no row of a table" in page.text


def test_sweep_shows_the_curve_unless_it_is_far_off() -> None:
    found = swept(*(TimedStep(batch, 0.5 + batch) for batch in (1, 2, 4)))
    found = found.model_copy(update={"device": replace(RAN, name="NVIDIA H100 <80GB> HBM3")})
    page = page_of(found)
    assert page.charts == ["Throughput", "Time of a step"]
    assert "Decode steps on NVIDIA H100 <80GB> HBM3" in page.text
    assert "t(b) = 0.5 + 1 · b ms for a step of b sequences, largest deviation 0.0 %" in page.text
    assert "fit: 0.5 + 1 · b" in page.texts
    assert found.fit is not None
    page = page_of(found.model_copy(update={"fit": replace(found.fit, worst_error=0.43)}))
    assert "fit: 0.5 + 1 · b" not in page.texts
    assert "describes the time of a step: the best is 43.0 % off" in page.text
    assert page_of(swept(TimedStep(4, 4.5))).charts == ["Throughput", "Time of a step"]


def test_damaged_file_is_an_error() -> None:
    found = swept(TimedStep(4, 4.5)).model_dump()
    found["points"][0]["batch"] = 10**12
    with pytest.raises(ValueError, match="less than or equal to 100000"):
        DecodeResult.model_validate(found)
