"""Figures, and what is written of them."""

from __future__ import annotations

import json
import re
from dataclasses import replace

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

CONFIG = Config(nreq=2, rate_per_s=80.0, tokens=2, bmax=16, seed=1)
SHAPE = Shape(layers=1, hidden=64, heads=4, kv_heads=2, context=8)
RAN = Device("cpu", "a processor", "2.13", "bfloat16", 2**20, 2**21, 2048, SHAPE, threads=2)

# Two requests: the second joins in the second step. Steps of 10 ms from 6 to 36 ms.
GAPS_MS = iter([None, 0.5, 1.5])
OUTCOME = run_schedule([0.0, 10.0], 2, 16, 6.0, lambda b: TimedStep(b, 10.0, next(GAPS_MS)))
RUN = run_figures(6.0, OUTCOME)


def ten_ms(batch: int) -> TimedStep:
    return TimedStep(batch, 10.0)


def printed(*runs: Run, config: Config = CONFIG) -> str:
    return decode_report(DecodeResult(config=config, device=RAN, runs=runs)).plain


def swept(*steps: TimedStep) -> DecodeResult:
    points = points_of(steps)
    curve = fit([(point.batch, point.step_ms.p50) for point in points])
    return DecodeResult(config=CONFIG, device=RAN, points=points, fit=curve)


def test_run_adds_up() -> None:
    assert (RUN.device_ms, RUN.requests.output_tokens) == (30.0, 4)
    assert RUN.tokens_per_s_device == pytest.approx(4 / 0.030)
    assert RUN.requests.tokens_per_s == pytest.approx(4 / 0.036)
    ttft, latency = RUN.requests.times_s["ttft"], RUN.requests.times_s["latency"]
    assert ttft is not None
    assert latency is not None
    assert (ttft.mean, ttft.p50) == pytest.approx((0.016, 0.016))
    assert (latency.mean, latency.most) == pytest.approx((0.026, 0.026))
    assert {point.batch: point.steps for point in RUN.points} == {1: 2, 2: 1}
    assert RUN.gap_ms is not None
    assert (RUN.gap_ms.p50, RUN.gap_ms.most) == (1.0, 1.5)


# The format strings of the reference program, as what reads its output reads them.
REFERENCE = (
    r"CONFIG nreq=\d+ lambda=\d+\.\d/s tokens=\d+ Bmax=\d+ window_ms=\d+\.\d\d work=\d+",
    r"GPU time: \d+\.\d{3} ms  \| tokens: \d+  \| tokens/sec \(GPU\): \d+\.\d\d",
    r"TTFT mean=\d+\.\d{3} ms  p95=\d+\.\d{3} ms",
    r"E2E  mean=\d+\.\d{3} ms  p95=\d+\.\d{3} ms",
)


def test_first_four_lines_have_the_reference_programs_form() -> None:
    lines = printed(RUN).splitlines()
    lines = lines[lines.index("Admission window of 6 ms") + 1 :]
    for line, pattern in zip(lines, REFERENCE, strict=False):
        assert re.fullmatch(pattern, line)
    assert lines == [
        f"CONFIG nreq=2 lambda=80.0/s tokens=2 Bmax=16 window_ms=6.00 work={SHAPE.multiply_adds}",
        "GPU time: 30.000 ms  | tokens: 4  | tokens/sec (GPU): 133.33",
        "TTFT mean=16.000 ms  p95=16.000 ms",
        "E2E  mean=26.000 ms  p95=26.000 ms",
        "STEPS 3 of 1.33 sequences  | tokens/sec (with admission): 111.11",
        "GAPS between steps median=1.000 ms  p95=1.450 ms  max=1.500 ms",
    ]


def test_run_without_a_device_has_no_gaps() -> None:
    run = run_figures(6.0, run_schedule([0.0, 10.0], 2, 16, 6.0, ten_ms))
    assert run.gap_ms is None
    assert "GAPS" not in printed(run)


def test_window_line_shows_the_change_of_p95_ttft() -> None:
    shorter = run_figures(2.0, run_schedule([0.0, 9.0], 2, 16, 2.0, ten_ms))
    line = "WINDOW 6 -> 2 ms: p95 TTFT 16.000 -> 12.950 ms (-19.1 %)"
    assert printed(RUN, shorter).splitlines()[-1] == line


def test_overload_is_said_with_a_rate_that_is_kept_up_with() -> None:
    full = run_figures(6.0, run_schedule([0.0, 1.0], 2, 2, 6.0, ten_ms))
    config = replace(CONFIG, bmax=2)
    assert "OVERLOADED" not in printed(full, config=config)
    line = printed(full, config=replace(config, rate_per_s=100.0)).splitlines()[-1]
    assert line.startswith("OVERLOADED 100 requests/s of 2 tokens need 200 tokens/s, steps of 2 g")
    assert line.endswith("--rate 80 is kept up with")
    assert "OVERLOADED" not in printed(RUN, config=replace(CONFIG, rate_per_s=1e6)), "none was full"


def test_busy_machine_is_said() -> None:
    idle = DecodeResult(config=CONFIG, device=replace(RAN, cpus=2, busy_threads=0.4))
    assert "BUSY" not in decode_report(idle).plain
    busy = DecodeResult(config=CONFIG, device=replace(RAN, cpus=2, busy_threads=1.5))
    line = "\nBUSY other programs keep 1.5 threads running on 2 CPUs"
    assert line in decode_report(busy).plain


def test_device_line_names_the_device_and_notes_weights_that_fit_in_the_cache() -> None:
    def told(ran: Device) -> str:
        return decode_report(DecodeResult(config=CONFIG, device=ran)).plain

    found = told(RAN)
    assert "\nDEVICE cpu (a processor) torch=2.13 threads=2 dtype=bfloat16 layers=1" in found
    assert "weights=2.1 MB cache=1.0 MB" in found
    assert "NOTE" not in found
    assert "NOTE the weights fit in the processor's cache" in told(replace(RAN, cache_bytes=2**21))
    unknown = told(replace(RAN, threads=None, cache_bytes=None))
    assert "threads" not in unknown
    assert "cache=unknown" in unknown


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
    assert found.fit is not None
    text = decode_report(found).plain
    assert re.search(
        r"t\(b\) = \S+ \+ \S+ · b\S* ms for a step of b sequences, largest deviation \d+\.\d %",
        text,
    )


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
    assert found["device"]["name"] == "a processor"
    assert found["device"]["torch"] == "2.13"
    assert found["device"]["shape"]["heads"] == 4
    [run] = found["runs"]
    assert run["window_ms"] == 6.0
    assert run["points"][0]["steps"] == 2
    assert run["points"][0]["step_ms"]["p50"] == 10.0
    assert set(run["gap_ms"]) >= {"p50", "p95", "most"}
    for name in ("ttft", "latency"):
        assert set(run["requests"]["times_s"][name]) >= {"mean", "p50", "p95"}
    assert [point["batch"] for point in found["points"]] == [1, 2, 4]
    assert found["fit"]["t0"] == pytest.approx(1)
