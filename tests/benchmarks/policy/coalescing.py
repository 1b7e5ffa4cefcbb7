"""Measures three identical deterministic streams at once against a single one.

Interleaved: one alone; three that share a generation; three with X-Orch-No-Coalesce, which share a
batch. The engine's count of generated tokens shows how many generations ran.
"""

from __future__ import annotations

import argparse
from statistics import median
from typing import Final

from tests.benchmarks.policy import profiles, rig, work
from tests.benchmarks.policy.call import Target
from tests.benchmarks.policy.load import together
from tests.benchmarks.policy.record import Record, at_most, table, verdict
from tests.benchmarks.policy.rig import Engine, NotServing, Sidecar
from vllm_plugin.contracts.profile import ServiceClass

SLOTS: Final = 8
STREAMS: Final = 3
ALLOWED: Final = 1.15

_DETERMINISTIC: Final = {"temperature": 0, "seed": 1}
ALONE, SHARED, APART = "one alone", "three, shared", "three, X-Orch-No-Coalesce"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size", choices=rig.SIZES, default="small")
    parser.add_argument("--rounds", type=int, default=14)
    parser.add_argument("--prompt-tokens", type=int, default=32, help="tokens")
    parser.add_argument("--output-tokens", type=int, default=64, help="tokens")


def quick(given: argparse.Namespace) -> None:
    given.rounds = 4


def run(given: argparse.Namespace, record: Record) -> None:
    path = profiles.write(rig.logs(), "coalescing", profiles.coalescing())
    seconds: dict[str, list[float]] = {ALONE: [], SHARED: [], APART: []}
    first: dict[str, list[float]] = {ALONE: [], SHARED: [], APART: []}
    decodes: dict[str, list[float]] = {ALONE: [], SHARED: [], APART: []}
    with Engine(given.size, SLOTS) as engine:
        engine.wait()
        with Sidecar(path, engine.url) as sidecar:
            plain = Target(sidecar.port, body=lambda request: _DETERMINISTIC)
            apart = Target(
                sidecar.port, lambda request: b"X-Orch-No-Coalesce: true\r\n", plain.body
            )
            ways = {ALONE: (plain, 1), SHARED: (plain, STREAMS), APART: (apart, STREAMS)}
            for number in range(-1, given.rounds):  # the first one warms up
                request = work.Request(
                    0.0,
                    ServiceClass.INTERACTIVE,
                    given.prompt_tokens,
                    given.output_tokens,
                    number + 1,
                )
                for way in list(ways)[:: -1 if number % 2 else 1]:
                    target, streams = ways[way]
                    before = engine.counters()
                    answers = together(target, [request] * streams)
                    ran = engine.counters().since(before).generated / given.output_tokens
                    failed = [a.code for a in answers if not a.complete]
                    if failed:
                        raise NotServing(f"{way}: {failed}")
                    if number >= 0:
                        seconds[way].append(max(a.last_s or 0.0 for a in answers))
                        first[way].append(1000 * max(a.first_s or 0.0 for a in answers))
                        decodes[way].append(ran)
    _report(seconds, first, decodes, record)


def _report(
    seconds: dict[str, list[float]],
    first: dict[str, list[float]],
    decodes: dict[str, list[float]],
    record: Record,
) -> None:
    ratios = {
        way: [a / b for a, b in zip(own, seconds[ALONE], strict=True)]
        for way, own in seconds.items()
    }
    rows = [
        [
            way,
            f"{median(own):.3f}",
            f"{median(first[way]):.0f}",
            f"{median(ratios[way]):.3f}",
            f"{min(ratios[way]):.3f} to {max(ratios[way]):.3f}",
            f"{median(decodes[way]):.2f}",
            f"{max(decodes[way]):.2f}",
        ]
        for way, own in seconds.items()
    ]
    head = ("", "seconds", "last first token ms", "x alone", "pairs", "decodes", "at most")
    print(table(head, rows))
    record.results |= {
        "seconds": seconds,
        "last_first_token_ms": first,
        "decodes": decodes,
        "ratios": ratios,
    }
    record.judge(
        at_most(f"{STREAMS} identical streams over one alone", median(ratios[SHARED]), ALLOWED),
        at_most("decodes of three identical streams", max(decodes[SHARED]), 1.0),
        verdict("decodes of three with X-Orch-No-Coalesce", min(decodes[APART]), STREAMS),
    )
