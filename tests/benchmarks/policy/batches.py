"""Measures tokens per second by batch size.

One engine of 32 slots; the profile's `batch.most` limits how many are used while more clients than
that are queued. Published figures of other engines are printed beside it. Then ten requests of 50
tokens, one by one and at once; and 1 to 16 requests one by one, interleaved and batched.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import count, pairwise
from statistics import median
from typing import Final

from tests.benchmarks.policy import profiles, rig, side_by_side, work
from tests.benchmarks.policy.call import Target
from tests.benchmarks.policy.load import closed_loop, in_turn, together
from tests.benchmarks.policy.record import Record, shown, table, verdict
from tests.benchmarks.policy.rig import Engine, NotServing, Sidecar
from vllm_plugin.contracts.profile import ServiceClass

SLOTS: Final = 32
CLIENTS: Final = 64
SIZES: Final = (1, 2, 4, 8, 16, 32)
WARM_S: Final = 2.0
SEED: Final = 7

# "5.83x throughput at batch 8 over serial"; and tokens/s, 25 at a batch of 1.
CLAIM_002: Final = {8: 5.83}
CLAIM_004: Final = {1: 25, 2: 45, 4: 75, 8: 120, 16: 180}
# "5-7x for 10 requests x 50 tokens".
TEN: Final = 10
FIFTY: Final = 50
TEN_TIMES: Final = 5.0

# More is not always a bit more: what counts as less.
NOISE: Final = 0.03


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size", choices=rig.SIZES, default="small")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=6.0, help="of each size and round")
    parser.add_argument("--prompt-tokens", type=int, default=16, help="tokens")
    parser.add_argument("--output-tokens", type=int, default=64, help="tokens")


def quick(given: argparse.Namespace) -> None:
    given.rounds, given.seconds = 1, 3.0


def _bulk(port: int) -> Target:
    return Target(port, lambda request: b"X-Orch-Class: bulk\r\n")


def _requests(prompt: int, output: int) -> Iterator[work.Request]:
    return (work.Request(0.0, ServiceClass.BULK, prompt, output, key) for key in count())


def run(given: argparse.Namespace, record: Record) -> None:
    with Engine(given.size, SLOTS) as engine:
        engine.wait()
        rates: dict[int, list[float]] = {size: [] for size in SIZES}
        for number in range(given.rounds):
            for size in SIZES[:: -1 if number % 2 else 1]:
                rates[size].append(_tokens_per_s(engine, size, given))
        _report(rates, record)
        _ten(engine, 1 if given.quick else 3, record)
        side_by_side.compare(engine, given.rounds, record)


def _tokens_per_s(engine: Engine, size: int, given: argparse.Namespace) -> float:
    path = profiles.write(rig.logs(), f"batch-{size}", profiles.batch_of(size))
    with Sidecar(path, engine.url) as sidecar:
        loaded = closed_loop(
            _bulk(sidecar.port),
            _requests(given.prompt_tokens, given.output_tokens),
            engine.counters,
            clients=CLIENTS,
            warm_s=WARM_S,
            seconds=given.seconds,
        )
    engine.rest()
    failed = {answer.code for answer in loaded.answers if answer.code is not None}
    if failed:
        raise NotServing(f"batch {size}: {failed}")
    return loaded.after.since(loaded.before).tokens_per_s


def _report(rates: dict[int, list[float]], record: Record) -> None:
    found = {size: median(values) for size, values in rates.items()}
    rows = []
    for size, rate in found.items():
        theirs = CLAIM_004.get(size)
        rows.append(
            [
                str(size),
                f"{rate:.0f}",
                f"{min(rates[size]):.0f} to {max(rates[size]):.0f}",
                f"{rate / found[1]:.2f}",
                shown(CLAIM_002.get(size)),
                shown(theirs),
                shown(None if theirs is None else theirs / CLAIM_004[1]),
            ]
        )
    head = ("batch", "tokens/s", "rounds", "x serial", "002: x", "004: tokens/s", "004: x")
    print(table(head, rows))
    record.results["tokens_per_s"] = rates
    steps = [b / a for a, b in pairwise(found.values())]
    record.judge(
        verdict("tokens/s of 16 at once over one", found[16] / found[1], 2.0),
        verdict("tokens/s of 8 at once over serial (002)", found[8] / found[1], CLAIM_002[8]),
        verdict("smallest gain from one size to the next", min(steps), 1 - NOISE),
    )


def _ten(engine: Engine, pairs: int, record: Record) -> None:
    path = profiles.write(rig.logs(), "batch-32", profiles.batch_of(SLOTS))
    ratios = []
    with Sidecar(path, engine.url) as sidecar:
        target, source = _bulk(sidecar.port), _requests(16, FIFTY)
        for _ in range(pairs):
            requests = [next(source) for _ in range(TEN)]
            one_by_one = in_turn([(target, request) for request in requests])
            at_once = together(target, requests)
            serial_s = sum(answer.last_s or 0.0 for answer in one_by_one)
            ratios.append(serial_s / max(answer.last_s or 0.0 for answer in at_once))
    record.results["ten_requests"] = ratios
    record.judge(verdict("10 requests of 50 tokens, at once (004: 5-7)", median(ratios), TEN_TIMES))
