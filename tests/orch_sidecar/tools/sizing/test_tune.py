"""The profile that `orch tune` writes, and the text about it and the memory bound."""

from __future__ import annotations

import inspect
import re
from math import inf
from pathlib import Path

import pytest

from orch_sidecar.tools.bench import cli
from orch_sidecar.tools.bench.results.result import Trial
from orch_sidecar.tools.bench.runs.series import RateSearch
from orch_sidecar.tools.sizing.decision import Binds, Decision
from orch_sidecar.tools.sizing.engine_model import MemoryBound
from orch_sidecar.tools.sizing.tune import (
    RATES,
    charts_of,
    decision_text,
    kept_interval,
    parser,
    tuned_profile,
)
from tests.orch_sidecar.tools.sizing.rows import curve, full
from vllm_plugin.contracts import profile as profiles
from vllm_plugin.contracts.profile import ProfileError

DECISION = Decision(24, 40, Binds.THROUGHPUT, 512, ())
FULL = full(curve(10.0, 1.0))


def test_options_are_those_that_a_plan_is_made_of() -> None:
    source = inspect.getsource(cli.plan_of) + inspect.getsource(cli.scenario_of)
    read = set(re.findall(r"options\.([a-z_]+)", source))
    assert read <= set(vars(parser().parse_args([])))


def test_profile_is_the_base_with_the_tuned_values(tmp_path: Path) -> None:
    path = tmp_path / "tuned.yaml"
    path.write_text(tuned_profile("cloud", DECISION, {"ttft": 700.0, "tpot": 60.0}, "tuned here"))
    assert path.read_text().startswith("# tuned here\n")
    found, base = profiles.load(str(path)), profiles.load("cloud")
    assert found.slots.value == 24
    assert found.engine["max_num_batched_tokens"].value == 512
    assert found.engine["long_prefill_token_threshold"].value == 64
    assert found.admission.interactive is not None
    assert found.admission.interactive.ttft_p95_ms == 700.0
    assert found.admission.interactive.tpot_p95_ms == 60.0
    assert found.admission.bulk == base.admission.bulk
    again = tuned_profile(str(path), Decision(1, None, Binds.MEMORY, None, ()), {}, "x")
    path.write_text(again)
    assert profiles.load(str(path)).slots.value == 2  # the least that batches
    assert profiles.load(str(path)).engine["max_num_batched_tokens"].value == 512


def test_profile_without_a_batch_cannot_be_tuned() -> None:
    with pytest.raises(ProfileError, match="'home': it does not batch"):
        tuned_profile("home", DECISION, {}, "x")


@pytest.mark.parametrize(("slots", "name"), [(1, "1 slot"), (24, "24 slots")])
def test_chosen_slots_are_marked_on_the_curve(slots: int, name: str) -> None:
    charts = charts_of(
        curve(10.0, 1.0, largest=8), Decision(slots, None, Binds.SLO, None, ()), 50.0
    )
    assert [chart.title for chart in charts] == ["Decode step", "Throughput"]
    assert [mark.name for mark in charts[0].marked] == ["SLO"]
    chosen = charts[1].series[-1]
    assert (chosen.name, chosen.xs) == (name, [float(slots)])


def test_text_states_what_binds_and_how_sure_it_is() -> None:
    rate = RateSearch(4.0, inf, **RATES)
    rate.best = Trial(rate_per_s=4.0, requests=40, share=1.0, kept=True)
    text = decision_text(DECISION, FULL, MemoryBound(130, 33, 6400), rate)
    assert "slots worth having: 24, limited by throughput" in text
    rate_text = f"{FULL.tokens_per_s(24):.0f} tokens/s"
    assert f"all in use, with prompts: {rate_text}, 34.0 ms per token (95th percentile)" in text
    assert "33 sequences of 130 tokens" in text
    assert "4/s (100% of 40 requests" in text
    assert "the largest may be higher" in text
    assert "how sure: no doubt is known" in text
    doubtful = Decision(24, 40, Binds.SLO, None, ("the curve is off",))
    text = decision_text(doubtful, FULL, None, None)
    assert "NOT SURE\n  the curve is off" in text
    assert "unknown, the engine has not measured its prefill" in text


def test_interval_shows_how_uncertain_few_requests_are() -> None:
    few, many = (
        kept_interval(Trial(rate_per_s=1, requests=n, share=0.95, kept=True)) for n in (40, 4000)
    )
    assert 0.8 < few[0] < 0.95 < few[1] < 1.0
    assert many[0] > 0.94
