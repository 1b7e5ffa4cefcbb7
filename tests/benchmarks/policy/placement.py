"""Measures where one sidecar places requests, and the cost of a second sidecar in a row.

Two engines, `home` with one slot and `cloud` with 8, are behind one sidecar: each row sends some
requests, and the engines' counters show which served how many. Then single requests go to the
engine directly, through one sidecar, and through two, in interleaved rounds.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from statistics import median
from typing import Any, Final, NamedTuple

from tests.benchmarks.policy import profiles, rig, work
from tests.benchmarks.policy.call import Answer, Target
from tests.benchmarks.policy.load import in_turn, together
from tests.benchmarks.policy.record import Record, Verdict, at_most, table
from tests.benchmarks.policy.rig import Engine, NotServing, Sidecar
from vllm_plugin.contracts.profile import ServiceClass

SLOTS: Final = 8
PROMPT, OUTPUT = 32, 32
ADDED_MS: Final = 3.0  # that a second tier may add to the time to the first token, at p50


class Case(NamedTuple):
    """Some requests, and where they have to land; None: wherever it is best."""

    name: str
    requests: int
    at_once: bool
    header: bytes = b""
    lands: str | None = None


CASES: Final = (
    Case("one after the other", 12, False),
    Case("nine at once", 9, True),
    Case("X-Orch-Pool: home, four at once", 4, True, b"X-Orch-Pool: home\r\n", "home"),
    Case("X-Orch-Pool: cloud, four at once", 4, True, b"X-Orch-Pool: cloud\r\n", "cloud"),
    Case("X-Orch-Pool: home; prefer, four", 4, True, b"X-Orch-Pool: home; prefer\r\n", "home"),
    Case(
        "single_stream, three at once", 3, True, b"X-Orch-Measurement-Type: single_stream\r\n",
        "home",
    ),
    Case(
        "batched_online, three at once", 3, True, b"X-Orch-Measurement-Type: batched_online\r\n",
        "cloud",
    ),
)  # fmt: skip


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size", choices=rig.SIZES, default="tiny")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pairs", type=int, default=300)


def quick(given: argparse.Namespace) -> None:
    given.rounds, given.pairs = 1, 60


def run(given: argparse.Namespace, record: Record) -> None:
    with (
        Engine(given.size, None, profile="home", name="home", core=0) as home,
        Engine(given.size, SLOTS, profile=profiles.BASE, name="cloud", core=1) as cloud,
    ):
        home.wait(), cloud.wait()
        pools = [
            {"name": "home", "url": home.url, "profile": "home"},
            {"name": "cloud", "url": cloud.url, "profile": profiles.BASE},
        ]
        with Sidecar(profiles.BASE, pools=pools, name="sidecar-pools") as sidecar:
            _land(sidecar, {"home": home, "cloud": cloud}, given.rounds, record)
    try:
        _second_tier(given, record)
    except NotServing as error:  # what was found so far is kept
        print(error)
        _judge_tier(None, record)


def _second_tier(given: argparse.Namespace, record: Record) -> None:
    with Engine(given.size, SLOTS, profile=profiles.BASE, name="cloud") as cloud:
        cloud.wait()
        trusting = {"ORCH_PARENTS": "open"}
        with Sidecar(profiles.BASE, cloud.url, name="sidecar-lower", environ=trusting) as lower:
            tier = {"name": "cloud", "url": lower.url, "profile": profiles.BASE, "tier": True}
            with Sidecar(profiles.BASE, pools=[tier], name="sidecar-upper") as upper:
                _tiers([cloud.port, lower.port, upper.port], given.pairs, record)


def _judge_tier(added_ms: float | None, record: Record) -> None:
    record.judge(at_most("TTFT that the second tier adds, p50 ms", added_ms, ADDED_MS))


def _request(key: int, output: int = OUTPUT) -> work.Request:
    return work.Request(0.0, ServiceClass.INTERACTIVE, PROMPT, output, key)


def _land(sidecar: Sidecar, engines: dict[str, Engine], rounds: int, record: Record) -> None:
    found: dict[str, list[dict[str, Any]]] = {case.name: [] for case in CASES}
    for number in range(-1, rounds):  # the first one is the engines' first acquaintance
        for case in CASES:
            measured = _case(sidecar, engines, case)
            if number >= 0:
                found[case.name].append(measured)
    rows = []
    for case in CASES:
        own = found[case.name]
        landed = {name: sum(each["landed"][name] for each in own) for name in engines}
        refused = Counter(code for each in own for code in each["refused"])
        labels = Counter(label for each in own for label in each["labels"])
        rows.append(
            [
                case.name,
                *(str(landed[name]) for name in engines),
                ", ".join(f"{code} {n}" for code, n in refused.items()) or "-",
                ", ".join(f"{label} {n}" for label, n in sorted(labels.items())),
                f"{median(each['seconds'] for each in own):.2f}",
            ]
        )
        if case.lands is not None:
            expected = case.requests * rounds
            record.judge(
                Verdict(
                    f"{case.name}: land at {case.lands}",
                    f"{landed[case.lands]} of {expected}",
                    f"{expected}",
                    landed[case.lands] == expected,
                )
            )
    print(table(("", "home", "cloud", "refused", "X-Measurement-Type", "seconds"), rows))
    record.results["landed"] = found
    record.results["step_time"] = {
        name: engine.capabilities()["step_time"] for name, engine in engines.items()
    }


def _case(sidecar: Sidecar, engines: dict[str, Engine], case: Case) -> dict[str, Any]:
    before = {name: engine.counters() for name, engine in engines.items()}
    target = Target(sidecar.port, lambda request: case.header)
    requests = [_request(key) for key in range(case.requests)]
    if case.at_once:
        answers = together(target, requests)
        seconds = max(answer.last_s or 0.0 for answer in answers)
    else:
        answers = in_turn([(target, request) for request in requests])
        seconds = sum(answer.last_s or 0.0 for answer in answers)
    for engine in engines.values():
        engine.rest()
    return {
        "landed": {
            name: engine.counters().since(before[name]).finished for name, engine in engines.items()
        },
        "refused": [answer.code for answer in answers if answer.code is not None],
        "labels": [answer.headers.get(b"x-measurement-type", b"?").decode() for answer in answers],
        "seconds": seconds,
    }


def _tiers(ports: list[int], pairs: int, record: Record) -> None:
    names = ("the engine", "one sidecar", "two sidecars")
    chance = random.Random(3)
    turns: list[list[int]] = []
    for _ in range(pairs + 5):  # the first ones open connections
        turns.append(chance.sample(range(len(ports)), len(ports)))
    asked = [
        (Target(ports[way]), _request(number, 2))
        for number, turn in enumerate(turns)
        for way in turn
    ]
    answers = iter(in_turn(asked))
    ttft: list[list[float]] = [[] for _ in ports]
    for number, turn in enumerate(turns):
        for way in turn:
            value = _ttft_ms(next(answers), names[way])
            if number >= 5:
                ttft[way].append(value)
    added = [
        [0.0] * pairs,
        *([b - a for a, b in zip(ttft[way - 1], ttft[way], strict=True)] for way in (1, 2)),
    ]
    rows = [
        [name, f"{median(own):.2f}", f"{sorted(own)[int(0.95 * pairs)]:.2f}", f"{median(more):.2f}"]
        for name, own, more in zip(names, ttft, added, strict=True)
    ]
    print(table(("through", "TTFT p50 ms", "p95", "added p50"), rows))
    record.results["tiers"] = {"ttft_ms": dict(zip(names, ttft, strict=True))}
    _judge_tier(median(added[2]), record)


def _ttft_ms(answer: Answer, way: str) -> float:
    if answer.first_s is None:
        raise NotServing(f"through {way}: {answer.code}")
    return 1000 * answer.first_s
