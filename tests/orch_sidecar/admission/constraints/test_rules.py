"""Which constraint blocks a request, and when it clears."""

from __future__ import annotations

from orch_sidecar.admission.types import EngineReport, KvNeed
from tests.orch_sidecar.admission.bench import Bench
from tests.orch_sidecar.admission.examples import (
    bulk,
    interactive,
    kv_of,
    reason,
)


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
