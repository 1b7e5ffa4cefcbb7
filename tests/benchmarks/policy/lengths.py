"""Measures whether bulk requests that are grouped by their length give more tokens per second.

A backlog of bulk requests, whose lengths are lognormal and known (`max_tokens`), all at once
through the sidecar: as it comes, grouped (in the order of their length, so that those that run
together are about equally long), and the longest first. The same requests each time, in
interleaved rounds; then larger backlogs in the simulator, which has no noise.

Continuous batching pads nothing. What an order can change is the cost of attention over unequal
contexts, and the tail, in which slots are empty. Both are in the tokens/s from the first arrival to
the last end; those until the first slot stays empty show the former alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from statistics import median
from typing import Final

from orch_sidecar.tools.simulate.engine import Engine as Model
from orch_sidecar.tools.simulate.engine import EngineShape, Sequence
from tests.benchmarks.policy import profiles, rig, work
from tests.benchmarks.policy.call import Answer, Target
from tests.benchmarks.policy.load import together
from tests.benchmarks.policy.record import Record, table
from tests.benchmarks.policy.rig import Engine, NotServing, Sidecar
from vllm_plugin.contracts.profile import ServiceClass

SLOTS: Final = 16
SEED: Final = 11
# Slots and requests of the simulated backlogs.
BACKLOGS: Final = ((16, 96), (16, 512), (64, 1024), (256, 1024), (64, 8192))
# From which gain on a grouping is worth its code.
WORTH: Final = 1.03

ORDERS: Final[dict[str, Callable[[list[work.Request]], list[work.Request]]]] = {
    "as they come": list,
    "grouped": lambda requests: sorted(requests, key=lambda each: each.output_tokens),
    "longest first": lambda requests: sorted(requests, key=lambda each: -each.output_tokens),
}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size", choices=rig.SIZES, default="small")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=96, help="of the backlog")
    parser.add_argument("--output-tokens", type=int, default=48, help="mean tokens")


def quick(given: argparse.Namespace) -> None:
    given.rounds, given.requests = 1, 48


def run(given: argparse.Namespace, record: Record) -> None:
    kind = work.Kind(
        ServiceClass.BULK, 1.0, work.Lengths(32, 0.5), work.Lengths(given.output_tokens, 0.8)
    )
    found: dict[str, list[tuple[float, float]]] = {order: [] for order in ORDERS}
    with Engine(given.size, SLOTS) as engine:
        engine.wait()
        path = profiles.write(rig.logs(), "lengths", profiles.batch_of(SLOTS))
        with Sidecar(path, engine.url) as sidecar:
            target = Target(sidecar.port, lambda request: b"X-Orch-Class: bulk\r\n")
            for number in range(-1, given.rounds):  # the first one is the engine's acquaintance
                names = list(ORDERS)
                for order in names[number % 3 :] + names[: number % 3]:
                    stream = work.endless((kind,), 1.0, SEED + number)
                    requests = ORDERS[order]([next(stream) for _ in range(given.requests)])
                    rates = _rates(together(target, requests))
                    engine.rest()
                    if number >= 0:
                        found[order].append(rates)
    record.results["tokens_per_s"] = found
    base = found["as they come"]
    rows = [
        [
            order,
            f"{median(each[0] for each in rates):.0f}",
            f"{median(a[0] / b[0] for a, b in zip(rates, base, strict=True)):.3f}",
            f"{median(each[1] for each in rates):.0f}",
            f"{median(a[1] / b[1] for a, b in zip(rates, base, strict=True)):.3f}",
        ]
        for order, rates in found.items()
    ]
    print(table(("order", "tokens/s", "x", "without the tail", "x"), rows))
    for order in list(ORDERS)[1:]:
        gain = median(a[0] / b[0] for a, b in zip(found[order], base, strict=True))
        word = "worth it" if gain >= WORTH else "not worth it"
        print(f"{order}: {gain:.3f} times the tokens/s; {word} (from {WORTH:g} on)")
    simulated = {each: _simulated(*each) for each in BACKLOGS}
    rows = [
        [f"{requests} in {slots} slots", *(f"{ratios[order]:.3f}" for order in list(ORDERS)[1:])]
        for (slots, requests), ratios in simulated.items()
    ]
    print(table(("simulated", *list(ORDERS)[1:]), rows))
    record.results["simulated"] = {str(each): ratios for each, ratios in simulated.items()}


def _simulated(slots: int, number: int) -> dict[str, float]:
    """Tokens/s of each order over those of the requests as they come, in the engine's model."""
    kind = work.Kind(ServiceClass.BULK, 1.0, work.Lengths(128, 0.5), work.Lengths(128, 0.8))
    stream = work.endless((kind,), 1.0, SEED)
    requests = [next(stream) for _ in range(number)]
    rates = {}
    for order, arranged in ORDERS.items():
        model = Model(EngineShape(slots=slots, by_priority=False))
        for at, each in enumerate(arranged(requests)):
            model.add(Sequence(at, each.prompt_tokens, each.output_tokens))
        now = 0.0
        while (took := model.begin_step(now)) is not None:
            now += took
            model.end_step(now)
        rates[order] = model.tokens / now
    return {order: rate / rates["as they come"] for order, rate in rates.items()}


def _rates(answers: list[Answer]) -> tuple[float, float]:
    """Tokens per second to the last end, and until fewer requests are left than there are slots.

    The latter counts the tokens of those that are still running by their share of the time since
    their first token.
    """
    ends = sorted(answer.last_s or 0.0 for answer in answers)
    if not all(answer.complete for answer in answers):
        raise NotServing(f"not answered: {[answer.code for answer in answers if answer.code]}")
    full_until = ends[max(0, len(ends) - SLOTS)]
    before = 0.0
    for answer in answers:
        assert answer.first_s is not None
        assert answer.last_s is not None
        ran_s = max(1e-6, answer.last_s - answer.first_s)
        share = min(1.0, max(0.0, (full_until - answer.first_s) / ran_s))
        before += share * answer.tokens
    return sum(answer.tokens for answer in answers) / ends[-1], before / full_until
