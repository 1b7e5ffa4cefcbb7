"""Measures what API keys get of one engine, with keys of their own and with one key for all.

300 requests at once of one client, one by one of another, who also asks alone; then, in turns,
four clients with a backlog, whose outputs differ eightfold in length. Where these share equally,
there are more short requests, and so more prompts: tokens/s are those read and generated.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from orch_sidecar.auth.keys import RANDOM_BYTES, entry_of, new_key
from tests.benchmarks.policy import profiles, rig, work
from tests.benchmarks.policy.call import Answer, Target
from tests.benchmarks.policy.load import closed_loop, in_turn, together
from tests.benchmarks.policy.record import Record, at_most, shown, table, verdict
from tests.benchmarks.policy.rig import Counters, Engine, Sidecar
from tests.orch_sidecar.admission.key_traffic import jain, p95
from vllm_plugin.contracts.profile import ServiceClass

SLOTS: Final = 16
CLIENTS: Final = 24  # requests under way of each of four keys
LENGTHS: Final = (16, 32, 64, 128)
NAMES: Final = ("a", "b", "c", "d")
WARM_S: Final = 5.0


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size", choices=rig.SIZES, default="small")
    parser.add_argument("--crowd", type=int, default=300, help="requests at once of one key")
    parser.add_argument("--one-by-one", type=int, default=25, help="requests of the other")
    parser.add_argument("--output-tokens", type=int, default=32, help="mean tokens")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each turn with four keys")
    parser.add_argument("--turns", type=int, default=3, help="with four keys, of each way")


def quick(given: argparse.Namespace) -> None:
    given.crowd, given.one_by_one, given.seconds, given.turns = 60, 8, 8.0, 1


def run(given: argparse.Namespace, record: Record) -> None:
    keys = {name: new_key(os.urandom(RANDOM_BYTES)) for name in NAMES}
    file = rig.logs() / "api_keys.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(entry_of(key, name) for name, key in keys.items()))
    path = profiles.write(rig.logs(), "keys", profiles.fifo(SLOTS, 600.0))
    with Engine(given.size, SLOTS) as engine:
        engine.wait()
        own = {name: name for name in NAMES}
        shared = dict.fromkeys(NAMES, "a")
        _crowd(engine, path, file, keys, given, record, {"own keys": own, "one key": shared})
        _four(engine, path, file, keys, given, record, {"own keys": own, "one key": shared})


def _requests(seed: int, mean: int, number: int) -> list[work.Request]:
    """Requests of similar length: outputs between half and one and a half of the mean."""
    drawn = random.Random(seed)
    return [
        work.Request(
            0.0,
            ServiceClass.INTERACTIVE,
            16,
            drawn.randint(mean // 2, 3 * mean // 2),
            1000 * seed + serial,
        )
        for serial in range(number)
    ]


def _endless(seed: int, mean: int) -> Iterator[work.Request]:
    while True:
        yield from _requests(seed, mean, 1000)
        seed += 100


def _sidecar(path: Path, engine: Engine, file: Path) -> Sidecar:
    return Sidecar(path, engine.url, environ={"ORCH_API_KEYS_FILE": str(file)})


def _target(sidecar: Sidecar, key: str) -> Target:
    header = f"Authorization: Bearer {key}\r\n".encode()
    return Target(sidecar.port, lambda request: header)


def _crowd(
    engine: Engine,
    path: Path,
    file: Path,
    keys: dict[str, str],
    given: argparse.Namespace,
    record: Record,
    ways: dict[str, dict[str, str]],
) -> None:
    alone = _requests(2, given.output_tokens, given.one_by_one)
    crowd = _requests(1, given.output_tokens, given.crowd)
    rows, found = [], dict[str, Any]()
    with _sidecar(path, engine, file) as sidecar:
        for way, key_of in ({"alone": ways["own keys"]} | ways).items():
            one = _target(sidecar, keys[key_of["b"]])
            many = _target(sidecar, keys[key_of["a"]])
            before = engine.counters()

            def all_at_once_of(target: Target, requests: list[work.Request]) -> Counters:
                """Returns the counters when the last of them has its answer."""
                together(target, requests)
                return engine.counters()

            with ThreadPoolExecutor(2) as threads:
                asked = [] if way == "alone" else crowd
                all_at_once = threads.submit(all_at_once_of, many, asked)
                answers: list[Answer] = []
                for request in alone:  # as long as the others are queued
                    answers += threads.submit(in_turn, [(one, request)]).result()
                    if way != "alone" and all_at_once.done():
                        break
                after = all_at_once.result()
            tokens_per_s = after.since(before).tokens_per_s if asked else None
            whole = [each.last_s for each in answers if each.last_s is not None]
            waits = [(each.queue_ms or 0.0) / 1000 for each in answers]
            found[way] = {"whole_s": whole, "wait_s": waits, "tokens_per_s": tokens_per_s}
            cells = (p95(waits), p95(whole), tokens_per_s)
            rows.append([way, str(len(answers)), *(shown(each) for each in cells)])
            engine.rest()
    print(table(("one by one", "requests", "wait p95, s", "answer p95, s", "tokens/s"), rows))
    record.results["crowd"] = found
    alone_s, own_s = (p95(found[way]["whole_s"]) for way in ("alone", "own keys"))
    tokens = [found[way]["tokens_per_s"] for way in ("own keys", "one key")]
    beside = found["own keys"]
    slot_s = p95(a - b for a, b in zip(beside["whole_s"], beside["wait_s"], strict=True))
    record.judge(
        at_most("answer p95 beside a crowd over alone in the engine", own_s / alone_s, 2.0),
        at_most("answer p95 beside a crowd over the same without its wait", own_s / slot_s, 2.0),
        verdict("tokens/s with own keys over one key", tokens[0] / tokens[1], 0.98),
    )


def _four(
    engine: Engine,
    path: Path,
    file: Path,
    keys: dict[str, str],
    given: argparse.Namespace,
    record: Record,
    ways: dict[str, dict[str, str]],
) -> None:
    turns: dict[str, list[_Turn]] = {way: [] for way in ways}
    for number in range(given.turns):
        for way in list(ways)[:: -1 if number % 2 else 1]:
            with _sidecar(path, engine, file) as sidecar:
                targets = {name: _target(sidecar, keys[ways[way][name]]) for name in NAMES}
                turns[way].append(_turn(engine, targets, given.seconds))
            engine.rest()
    rows, middle = [], dict[str, _Turn]()
    for way, taken in turns.items():
        middle[way] = _Turn(
            [
                round(median(shares))
                for shares in zip(*(each.charged for each in taken), strict=True)
            ],
            median(each.generated_per_s for each in taken),
            median(each.total_per_s for each in taken),
        )
        cells = [str(each) for each in middle[way].charged]
        found = (jain(middle[way].charged), *middle[way][1:])
        rows.append([way, *cells, *(f"{each:.3g}" for each in found)])
    heads = ("charged tokens", *map(str, LENGTHS), "Jain's index", "generated/s", "tokens/s")
    print(table(heads, rows))
    record.results["four"] = {way: [each._asdict() for each in turns[way]] for way in ways}
    own, one = middle["own keys"], middle["one key"]
    print(
        f"generated/s with own keys over one key: {own.generated_per_s / one.generated_per_s:.2f}"
    )
    record.judge(
        verdict("Jain's index of four keys", jain(own.charged), 0.95),
        verdict("tokens/s with own keys over one key", own.total_per_s / one.total_per_s, 0.98),
    )


class _Turn(NamedTuple):
    """What four clients with a backlog got. `charged`: tokens, of each client's completed requests.
    `generated_per_s`, `total_per_s`: tokens of the engine, the second with those of the prompts."""

    charged: list[int]
    generated_per_s: float
    total_per_s: float


def _turn(engine: Engine, targets: Mapping[str, Target], seconds: float) -> _Turn:
    def loop(name: str, mean: int) -> Sequence[Answer]:
        loaded = closed_loop(
            targets[name],
            _endless(len(name) + mean, mean),
            lambda: None,
            clients=CLIENTS,
            warm_s=WARM_S,
            seconds=seconds,
        )
        return [
            each
            for each in loaded.answers
            if each.complete and (each.last_s or 0.0) >= loaded.from_s
        ]

    with ThreadPoolExecutor(len(NAMES)) as threads:
        loops = [threads.submit(loop, *each) for each in zip(NAMES, LENGTHS, strict=True)]
        time.sleep(WARM_S)
        before = engine.counters()
        time.sleep(seconds - 0.5)  # while all of them have requests
        spent = engine.counters().since(before)
        answered = [each.result() for each in loops]
    charged = [
        sum(each.request.prompt_tokens + 2 * each.tokens for each in answers)
        for answers in answered
    ]
    return _Turn(charged, spent.tokens_per_s, spent.total_per_s)
