"""Which constraint blocks a request, and when it clears."""

from __future__ import annotations

import pytest

from orch_sidecar.admission.types import EngineReport, KvNeed
from tests.orch_sidecar.admission.bench import Bench
from tests.orch_sidecar.admission.examples import (
    bulk,
    class_rules,
    interactive,
    kv_of,
    reason,
    rules,
)


def test_slots_are_leased_and_foreign_ones() -> None:
    bench = Bench(4)
    bench.grant(bulk(2))
    bench.ledger.foreign = 1
    assert bench.blocked_by(interactive()) is None
    assert reason(bench.blocked_by(interactive(2))) == "slot"
    assert reason(bench.blocked_by(bulk(2), due=True)) == "slot"


def test_interactive_requests_count_among_themselves() -> None:
    bench = Bench(16)
    bench.limit(interactive=2, bulk=8, mixed=8)
    bench.grant(bulk(8))
    bench.grant(interactive())
    assert bench.blocked_by(interactive()) is None
    assert reason(bench.blocked_by(interactive(2))) == "batch"


def test_an_interactive_request_beyond_the_batch_goes_when_no_other_runs() -> None:
    bench = Bench(16)
    bench.limit(interactive=2, bulk=8, mixed=8)
    bench.grant(bulk())
    assert bench.blocked_by(interactive(3)) is None


def test_bulk_fills_what_its_slo_allows_of_both_classes_and_foreign_ones() -> None:
    bench = Bench(16)
    bench.limit(interactive=4, bulk=8, mixed=8)
    bench.grant(interactive(2))
    bench.grant(bulk(4))
    bench.ledger.foreign = 1
    assert bench.blocked_by(bulk()) is None
    assert reason(bench.blocked_by(bulk(2))) == "batch"
    assert reason(bench.blocked_by(bulk(2), due=True)) == "batch"


def test_bulk_beside_interactive_traffic_keeps_the_interactive_slo() -> None:
    bench = Bench(16)
    bench.limit(interactive=4, bulk=8, mixed=3)
    bench.grant(bulk(2))
    assert bench.blocked_by(bulk(2)) is None
    run = bench.grant(interactive())
    assert reason(bench.blocked_by(bulk())) == "batch"
    assert bench.blocked_by(bulk(), due=True) is None
    demand = bench.constraints.reserve.interactive
    demand.slots, demand._updated_at = 1.0, 1.0
    bench.release(run, 1.0)
    assert reason(bench.blocked_by(bulk(2), 1.0)) == "batch", "the next one is expected"
    assert bench.blocked_by(bulk(2), 61.0) is None


def test_alone_in_the_engine_only_slots_block() -> None:
    bench = Bench(16)
    bench.limit(interactive=2, bulk=2, mixed=2)
    bench.constraints.reported(EngineReport("e", 16, kv=kv_of(10), kv_usage=1.0), 0.0)
    bench.constraints.reserve.interactive.slots = 100.0
    assert bench.blocked_by(bulk(16, prompt_tokens=1000, max_tokens=1000)) is None
    assert bench.blocked_by(interactive(16, prompt_tokens=1000, max_tokens=1000)) is None


def test_one_bulk_prompt_at_a_time_beside_interactive_traffic_of_unknown_speed() -> None:
    bench = Bench(8)
    run = bench.grant(bulk(prompt_tokens=100))
    assert bench.blocked_by(bulk(prompt_tokens=100)) is None, "no interactive request waits"
    bench.grant(interactive(prompt_tokens=100))
    assert reason(bench.blocked_by(bulk(prompt_tokens=100))) == "prefill"
    assert bench.blocked_by(bulk(prompt_tokens=100), due=True) is None
    assert bench.blocked_by(interactive(prompt_tokens=100)) is None
    bench.release(run, 1.0)
    assert bench.blocked_by(bulk(prompt_tokens=100), 1.0) is None


def test_bulk_prompts_are_read_within_a_quarter_of_the_interactive_slo() -> None:
    bench = Bench(8, rules(class_rules(ttft_p95_ms=400.0)))
    bench.constraints.reported(EngineReport("e", 8, prefill_tokens_per_s=1000.0), 0.0)
    bench.grant(interactive())
    bench.grant(bulk(prompt_tokens=60))
    assert bench.blocked_by(bulk(prompt_tokens=40)) is None
    assert reason(bench.blocked_by(bulk(prompt_tokens=50))) == "prefill"
    assert bench.blocked_by(bulk(prompt_tokens=50), 0.02) is None


def test_a_request_waits_for_room_in_the_cache_whatever_its_class() -> None:
    bench = Bench(8)
    bench.constraints.reported(EngineReport("e", 8, kv=kv_of(1000), kv_usage=0.95), 0.0)
    bench.grant(bulk(prompt_tokens=500, max_tokens=100))
    fits, too_much = {"prompt_tokens": 200, "max_tokens": 100}, {"prompt_tokens": 400}
    assert bench.blocked_by(interactive(2, **fits)) is None
    assert reason(bench.blocked_by(interactive(3, **fits))) == "kv"
    for request in (interactive(**too_much), bulk(**too_much)):
        assert reason(bench.blocked_by(request, due=True)) == "kv"


def test_a_sequence_takes_whole_blocks_of_the_cache() -> None:
    bench = Bench(8)
    bench.constraints.reported(EngineReport("e", 8, kv=kv_of(64, 16)), 0.0)
    for max_tokens, output in ((7, 2), (6, 0), (None, None)):
        request = bulk(2, prompt_tokens=20, max_tokens=max_tokens)
        bench.constraints.set_kv(request)
        assert request.kv == KvNeed(2, 0, output)
    bench.grant(bulk(prompt_tokens=30, max_tokens=2))
    assert bench.blocked_by(interactive(2, prompt_tokens=20, max_tokens=6)) is None
    assert reason(bench.blocked_by(interactive(2, prompt_tokens=20, max_tokens=7))) == "kv"


def test_blocks_that_are_only_begun_are_counted_whole() -> None:
    """48 blocks of 128 tokens; each of these takes three of them."""
    bench = Bench(64)
    report = EngineReport("e", 64, kv=kv_of(48 * 128, 128))
    bench.constraints.reported(report, 0.0)
    request = interactive(prompt_tokens=130, max_tokens=130)
    while bench.blocked_by(request) is None:
        bench.grant(request)
    assert reason(bench.blocked_by(request)) == "kv"
    assert bench.ledger.lease_count == 16


def test_what_is_on_its_way_to_the_scheduler_is_in_no_usage() -> None:
    """A step reads one prompt, while the others wait where the engine does not count them."""
    bench = Bench(8)
    bench.constraints.reported(EngineReport("e", 8, kv=kv_of(1000)), 0.0)
    for _ in range(4):
        bench.grant(interactive(prompt_tokens=100, max_tokens=100))
    reading = EngineReport("e", 8, 1, kv=kv_of(1000), kv_usage=0.1, prefilling=1, scheduled=1)
    bench.constraints.reported(reading, 5.0)
    assert reason(bench.blocked_by(interactive(prompt_tokens=100, max_tokens=200), 5.0)) == "kv"
    read = EngineReport("e", 8, 1, kv=kv_of(1000), kv_usage=0.3, scheduled=4)
    bench.constraints.reported(read, 6.0)
    assert bench.blocked_by(interactive(prompt_tokens=100, max_tokens=200), 6.0) is None


def test_another_engine_begins_empty() -> None:
    bench = Bench(8)
    bench.grant(bulk(prompt_tokens=500))
    bench.ledger.begin_epoch("e2")
    bench.constraints.begin_epoch()
    bench.grant(interactive())
    assert bench.blocked_by(bulk(prompt_tokens=500)) is None
    assert (bench.ledger.interactive, bench.ledger.bulk) == (1, 0)


@pytest.mark.parametrize("name", ["kv", "reserve", "batch"])
def test_what_comes_back_slowly_is_looked_at_now_and_then(name: str) -> None:
    assert Bench(4).clears_at(name, 10.0) == 10.25


def test_end_of_a_lack_of_slots_is_unpredictable() -> None:
    assert Bench(4).clears_at("slot", 10.0) is None


def test_prompts_are_looked_at_when_they_will_have_been_read() -> None:
    bench = Bench(4)
    bench.grant(bulk(prompt_tokens=600))
    bench.wait(bulk(prompt_tokens=0))
    assert bench.clears_at("prefill", 0.0) == 0.25, "of unknown speed"
    bench.constraints.reported(EngineReport("e", 4, prefill_tokens_per_s=1000.0), 0.0)
    assert bench.clears_at("prefill", 0.0) == pytest.approx(0.1)
