"""The model of the engine, against what vLLM's scheduler does."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orch_sidecar.tools.simulate.engine import Engine, EngineShape, Sequence
from tests.fuzz import examples

# 10 ms and 1 ms for each sequence that decodes; 1 ms for each prompt token.
PLAIN = EngineShape(
    slots=4,
    t0_ms=10.0,
    c_ms=1.0,
    alpha=1.0,
    prefill_tokens_per_s=1000.0,
    step_tokens=100,
    long_prefill_tokens=40,
)


def run(engine: Engine, now: float = 0.0, steps: int = 1_000_000) -> float:
    """Steps until the engine has nothing to do, or so often; returns the time."""
    for _ in range(steps):
        took = engine.begin_step(now)
        if took is None:
            break
        now += took
        engine.end_step(now)
    return now


def of(engine: Engine, *sizes: tuple[int, int], priorities: tuple[int, ...] = ()) -> list[Sequence]:
    """Adds sequences of (prompt, output) tokens."""
    made = [
        Sequence(order, prompt, output, priorities[order] if priorities else 0)
        for order, (prompt, output) in enumerate(sizes)
    ]
    for sequence in made:
        engine.add(sequence)
    return made


def test_first_token_comes_with_the_step_that_reads_the_last_of_the_prompt() -> None:
    engine = Engine(PLAIN)
    [sequence] = of(engine, (90, 4))
    run(engine)
    # Alone: the whole prompt in one step of 10 + 90 ms. Then 3 steps of 11 ms.
    assert sequence.first_token_at == pytest.approx(0.100)
    assert sequence.ended_at == pytest.approx(0.133)
    assert engine.tokens == 4


def test_long_prompt_is_read_in_parts_beside_others() -> None:
    engine = Engine(PLAIN)
    first, long = of(engine, (1, 50), (90, 1))
    run(engine)
    assert first.first_token_at == pytest.approx(0.051)  # 10 + 1 + 40
    # Two more steps, in which the first one decodes: 11 + 40, 11 + 10.
    assert long.first_token_at == pytest.approx(0.051 + 0.051 + 0.021)


def test_token_budget_of_a_step_is_shared_in_order() -> None:
    engine = Engine(PLAIN)
    sequences = of(engine, (40, 1), (40, 1), (40, 1))
    engine.begin_step(0.0)
    assert [sequence.chunk for sequence in sequences] == [40, 40, 20]


def test_decoding_sequences_take_their_tokens_before_prompts() -> None:
    engine = Engine(replace(PLAIN, step_tokens=10))
    of(engine, (2, 9), (2, 9), (2, 9))
    run(engine, steps=1)
    [late] = of(engine, (30, 1))
    engine.begin_step(0.0)
    assert late.chunk == 7


def test_no_more_run_than_there_are_slots() -> None:
    engine = Engine(PLAIN)
    of(engine, *[(1, 5)] * 6)
    run(engine, steps=1)
    assert (engine.decoding, engine.waiting, engine.held) == (4, 2, 6)
    run(engine)
    assert engine.tokens == 30
    assert engine.largest == 4


@pytest.mark.parametrize(("by_priority", "order"), [(True, [1, 3, 0, 2]), (False, [0, 1, 2, 3])])
def test_waiting_go_by_priority_if_any_and_then_in_order(
    by_priority: bool, order: list[int]
) -> None:
    engine = Engine(replace(PLAIN, slots=1, by_priority=by_priority))
    sequences = of(engine, (1, 1), (1, 1), (1, 1), (1, 1), priorities=(1, 0, 1, 0))
    run(engine)
    began = sorted(sequences, key=lambda each: each.began_at or 0.0)
    assert [each.order for each in began] == order


def test_full_cache_takes_the_last_one_out_and_reads_it_again() -> None:
    engine = Engine(replace(PLAIN, kv_tokens=64, block_tokens=16, by_priority=False))
    first, last = of(engine, (16, 30), (16, 30))
    run(engine)
    assert (first.preempted, last.preempted) == (0, 1)
    assert engine.preemptions == 1
    assert engine.tokens == 60
    assert engine.kv_usage == 0.0
    assert first.ended_at is not None
    assert last.ended_at is not None
    assert first.ended_at < last.ended_at


def test_full_cache_takes_out_the_lowest_priority_first() -> None:
    engine = Engine(replace(PLAIN, kv_tokens=64, block_tokens=16))
    bulk, interactive = of(engine, (16, 30), (16, 30), priorities=(1, 0))
    run(engine)
    assert (bulk.preempted, interactive.preempted) == (1, 0)


def test_waiting_sequence_begins_only_when_its_whole_prompt_fits() -> None:
    engine = Engine(replace(PLAIN, kv_tokens=64, block_tokens=16))
    of(engine, (40, 5), (30, 5))
    run(engine, steps=1)
    assert engine.waiting == 1


def test_sequence_that_can_never_fit_is_an_error() -> None:
    with pytest.raises(ValueError, match="can never fit"):
        of(Engine(replace(PLAIN, kv_tokens=64)), (60, 5))


def test_noise_is_of_its_seed() -> None:
    shape = replace(PLAIN, noise=0.2)
    ends = []
    for seed in (1, 1, 2):
        engine = Engine(shape, seed)
        of(engine, (10, 20))
        ends.append(run(engine))
    assert ends[0] == ends[1] != ends[2]


def blocks_taken(engine: Engine) -> int:
    """Counted anew, sequence by sequence."""
    taken = 0
    for sequence in engine._running.values():
        since = sequence.decodes_since
        tokens = sequence.cached + (0 if since is None else engine.steps - since)
        taken += -(-tokens // engine.shape.block_tokens)
    return taken


SIZES = st.lists(
    st.tuples(st.integers(1, 120), st.integers(1, 60), st.integers(0, 1)), min_size=1, max_size=12
)


@settings(max_examples=examples(150), deadline=None)
@given(
    sizes=SIZES,
    kv_tokens=st.integers(180, 600),
    block_tokens=st.integers(1, 17),
    by_priority=st.booleans(),
)
def test_every_token_is_made_once_and_every_block_comes_back(
    sizes: list[tuple[int, int, int]], kv_tokens: int, block_tokens: int, by_priority: bool
) -> None:
    kv_tokens += 2 * block_tokens
    shape = replace(PLAIN, kv_tokens=kv_tokens, block_tokens=block_tokens, by_priority=by_priority)
    engine = Engine(shape)
    lengths, priorities = [size[:2] for size in sizes], tuple(size[2] for size in sizes)
    made = of(engine, *lengths, priorities=priorities)
    now = 0.0
    while (took := engine.begin_step(now)) is not None:
        assert engine._free >= 0
        now += took
        engine.end_step(now)
        assert engine.steps < 100_000
        assert engine._blocks is not None
        assert engine._free == engine._blocks - blocks_taken(engine)
        assert engine.held - engine.waiting <= shape.slots
    assert engine.tokens == sum(output for _, output, _ in sizes)
    assert all(sequence.ended_at is not None for sequence in made)
    assert engine.kv_usage == 0.0
