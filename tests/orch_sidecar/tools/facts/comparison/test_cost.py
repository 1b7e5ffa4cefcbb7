"""What tokens cost, by hand; what has no price; and the command."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orch_sidecar.tools.facts.comparison.cost import Cost, Prices, priced
from orch_sidecar.tools.facts.signing.files import digest, evidence_of, named_by
from orch_sidecar.tools.facts.tables.files import append
from orch_sidecar.tools.facts.tables.row import Label, Row
from tests.orch_sidecar.tools.facts.comparison import located
from tests.orch_sidecar.tools.facts.conftest import Run
from tests.orch_sidecar.tools.facts.rows import fact
from tests.orch_sidecar.tools.facts.signing.signed import (
    SigningEngine,
    content_of,
    evidence_and_row,
    result_of,
    row_of,
)
from vllm_plugin.state.engine_speed import SchedulerReport

SINGLE, OFFLINE, UNKNOWN = Label.SINGLE_STREAM, Label.OFFLINE, Label.TO_BE_CONFIRMED
# A thousand tokens per second, 3.6 million per hour: at 3.60 an hour a million costs 1.
PRICES = Prices(3.6)
SLO = {"slo_ttft_ms": 500, "goodput_share": 0.8}
# Of 80 requests of 512 tokens.
WINDOW = {"window_s": 40.96, "preliminary": "yes"}
NO_EVIDENCE: Mapping[str, bytes] = {}


def thousand(label: Label = Label.BATCHED_ONLINE, **changes: Any) -> Row:
    notes = {**(SLO if label is Label.BATCHED_ONLINE else {}), **changes.pop("notes", {})}
    return fact(label, throughput_tokens_per_sec=1000.0, notes=notes, **changes)


def cost_of(row: Row, prices: Prices = PRICES, contents: Mapping[str, bytes] = NO_EVIDENCE) -> Cost:
    made = priced(located(row), prices, contents.get)
    [[found]] = made.costs.values()
    assert made.unpriced == []
    return found


def why_not(row: Row) -> str:
    made = priced(located(row), PRICES, NO_EVIDENCE.get)
    [without] = made.unpriced
    assert made.costs == {}
    return without.why


class TestHour:
    def test_million_of_output_costs_the_hour_over_its_tokens(self) -> None:
        assert cost_of(thousand(OFFLINE)).output_with_input == pytest.approx(1.0)

    def test_hour_of_a_copy_on_four_accelerators_costs_four_times_as_much(self) -> None:
        found = cost_of(thousand(OFFLINE, gpu_count=4))
        assert (found.hour, found.output_with_input) == pytest.approx((14.4, 4.0))

    def test_machine_without_an_accelerator_costs_one_price(self) -> None:
        assert cost_of(thousand(OFFLINE, gpu="CPU (test)", gpu_count=0)).hour == 3.6

    def test_reserved_hours_are_paid_for_and_used_ones_have_tokens(self) -> None:
        found = cost_of(thousand(SINGLE), Prices(3.6, used=0.1))
        assert (found.hour, found.output_with_input) == pytest.approx((3.6, 10.0))

    def test_electricity_is_of_hours_that_are_used_and_of_the_others_at_their_own_draws(
        self,
    ) -> None:
        prices = Prices(3.6, used=0.25, per_kwh=0.5, watts=1000.0, idle_watts=100.0)
        found = cost_of(thousand(SINGLE, gpu_count=2), prices)
        assert found.hour == pytest.approx(2 * (3.6 + 0.5 * (0.25 * 1.0 + 0.75 * 0.1)))
        assert Prices(3.6, per_kwh=0.5, watts=1000.0).hour(1) == pytest.approx(4.1)


class TestSharedMachine:
    def test_tokens_are_those_of_requests_within_the_slo(self) -> None:
        found = cost_of(thousand())
        assert (found.tokens_per_s, found.within_slo) == pytest.approx((800.0, 0.8))
        assert found.output_with_input == pytest.approx(1 / 0.8)
        assert found.slo == "TTFT 500 ms"

    def test_share_of_all_requests_is_related_to_the_answered_ones(self) -> None:
        outcomes = {"requests": 80, **WINDOW, "refused": 15, "failed": 5}
        assert cost_of(thousand(notes=outcomes)).within_slo == pytest.approx(1.0)

    @pytest.mark.parametrize(
        ("row", "missing"),
        [
            (fact(), "need the SLO .* and the share of requests within it"),
            (fact(notes={"goodput_share": 0.9}), r"need the SLO \(slo_ttft_ms.*\)$"),
            (fact(notes={"slo_tpot_ms": 50}), r"need the share .* \(goodput_share\)$"),
            (thousand(notes={"latency_of": "interactive"}), "of interactive requests only"),
            (thousand(notes={"goodput_share": 0.0}), "no request was within the SLO"),
            (fact(UNKNOWN), "it is unknown how the engine was batching"),
        ],
    )
    def test_row_without_a_price_says_what_it_lacks(self, row: Row, missing: str) -> None:
        assert re.search(missing, why_not(row))


@pytest.fixture
def signed() -> tuple[Row, bytes]:
    """A row, and the evidence that its engine decoded for 60 ms and read prompts for 20 more."""
    engine = SigningEngine()
    before = engine.ask()
    engine.wait(0.02)
    engine.decode(3, 6)
    engine.wait(0.02)
    report = SchedulerReport(engine.now_s, 0, 0, 0.0, 0, 1, elapsed_s=0.02, prompt_tokens=20)
    engine.engine_state.record(report)
    after = engine.ask(content_of(before.envelope)["sequence"])
    row = row_of(notes={"slo_ttft_ms": 20, "goodput_share": 1.0})
    result = result_of(row)
    result["scenario"] |= {"slo_ms": {"ttft": 20.0}}
    content, row = evidence_of(engine.signed(before, after), row, result)
    return row, content


class TestInAndOut:
    def test_hour_is_divided_by_the_engines_time(self, signed: tuple[Row, bytes]) -> None:
        row, content = signed
        found = cost_of(row, contents={digest(content): content})
        assert found.split_by == "the engine's time"
        assert found.engine_busy == 1.0
        # A quarter of the hour is of 20 input tokens for each 6 of the output.
        assert found.input == pytest.approx(0.25 * found.output_with_input * 6 / 20)
        assert found.output == pytest.approx(0.75 * found.output_with_input)

    @pytest.mark.parametrize("change", [b" ", b""], ids=["changed", "of another row"])
    def test_evidence_that_is_not_the_rows_own_divides_nothing(
        self, signed: tuple[Row, bytes], change: bytes
    ) -> None:
        row, content = signed
        row = row if change else replace(row, model_name="another")
        found = cost_of(row, contents={named_by(row)[1] or "": content + change})
        assert (found.input, found.engine_busy) == (None, None)

    def test_evidence_from_which_the_row_does_not_follow_divides_nothing(self) -> None:
        row = row_of(notes={"slo_ttft_ms": 20, "goodput_share": 1.0}, gpu="NVIDIA B200")
        content, row = evidence_and_row(SigningEngine().measure(), row)
        found = cost_of(row, contents={digest(content): content})
        assert (found.input, found.engine_busy) == (None, None)

    def test_both_prices_together_are_the_one_with_inputs_included(self) -> None:
        row = thousand(SINGLE, input_tokens=300, notes={"ttft_p50_ms": 80, "latency_p50_ms": 512})
        found = cost_of(row)
        assert found.split_by == "the time to the first token"
        assert found.input is not None
        assert found.output is not None
        together = found.output * 512 + found.input * 300
        assert together == pytest.approx(found.output_with_input * 512)

    def test_batched_row_without_evidence_has_no_price_of_either_alone(self) -> None:
        found = cost_of(thousand(notes={"ttft_p50_ms": 80, "latency_p50_ms": 512}))
        assert (found.input, found.output, found.split_by) == (None, None, "")


class TestCommand:
    @pytest.fixture
    def table(self, tmp_path: Path) -> Path:
        path = tmp_path / "t.csv"
        append(path, [thousand(SINGLE), thousand(), fact(source_tag="run-2"), thousand(OFFLINE)])
        return path

    def test_prints_a_table_for_each_label_and_what_has_no_price(
        self, run: Run, table: Path
    ) -> None:
        code, out, _ = run("cost", table, "--per-hour", "3.6")
        sections = [
            line for line in out.splitlines() if line.endswith((":", "one", "SLO", "waits"))
        ]
        assert [line.partition(":")[0] for line in sections] == [
            "single_stream", "batched_online", "offline", "without a price",
        ]  # fmt: skip
        assert "80.0% (TTFT 500 ms)" in out
        assert f"{table}:4: incomplete" in out
        assert code == 0

    def test_json_has_the_costs_by_label(self, run: Run, table: Path) -> None:
        _, out, _ = run("cost", table, "--per-hour", "3.6", "--json")
        found = json.loads(out)
        assert list(found["costs"]) == ["single_stream", "batched_online", "offline"]
        assert found["costs"]["offline"][0]["output_with_input"] == pytest.approx(1.0)

    @pytest.mark.parametrize(
        ("words", "error"),
        [
            ("--electricity 0.30", "'0.30' must be a price for a kWh, such as 0.30/kWh"),
            ("--electricity 0.30/kWh", "electricity needs --watts"),
            ("--electricity 0.30/kWh --watts 350 --used 0.5", "needs --idle-watts, too"),
            ("--used 0", "--used must be above 0: unused hours have no tokens"),
        ],
    )
    def test_what_makes_no_price_is_a_usage_error(
        self, run: Run, table: Path, words: str, error: str
    ) -> None:
        code, _, err = run("cost", table, "--per-hour", "1", *words.split())
        assert code == 2
        assert error in err

    def test_table_without_a_price_exits_with_1(self, run: Run, tmp_path: Path) -> None:
        append(tmp_path / "t.csv", [fact()])
        code, _, err = run("cost", tmp_path / "t.csv", "--per-hour", "1")
        assert code == 1
        assert "no row that can be priced" in err
