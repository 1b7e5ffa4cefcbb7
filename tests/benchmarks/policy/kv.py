"""Measures contexts that together exceed the KV cache: 64 slots, with blocks for a part of them.

The same 64 clients run through the sidecar, with the KV cache constraint, and directly at the
engine, which admits all of them at once as a sidecar would that only counts slots. An engine
without free blocks preempts sequences and computes them again.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from statistics import median
from typing import Any, Final

from tests.benchmarks.policy import profiles, rig, work
from tests.benchmarks.policy.call import Answer, Target
from tests.benchmarks.policy.load import Loaded, closed_loop
from tests.benchmarks.policy.record import Record, at_most, shown, table, verdict
from tests.benchmarks.policy.rig import Counters, Engine, Sidecar
from vllm_plugin.contracts.profile import ServiceClass

SLOTS: Final = 64
SEED: Final = 11
WITH, WITHOUT = "with the rule", "without"

_SHOWN: Final = ("preemptions", "preempted_reported", "preemptions_before", "at_once", "prompts")


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size", choices=rig.SIZES, default="small")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=25.0, help="of each way and round")
    parser.add_argument("--warm-s", type=float, default=12.0, help="before that, each time")
    parser.add_argument("--blocks", type=int, default=48, help="of the KV cache")
    parser.add_argument("--block-size", type=int, default=128, help="tokens (CPU: 128)")
    parser.add_argument("--prompt-tokens", type=float, default=120.0, help="mean tokens")
    parser.add_argument("--output-tokens", type=float, default=120.0, help="mean tokens")


def quick(given: argparse.Namespace) -> None:
    given.rounds, given.seconds, given.warm_s = 1, 8.0, 5.0


def run(given: argparse.Namespace, record: Record) -> None:
    kind = work.Kind(
        ServiceClass.BULK, 1.0, work.Lengths(given.prompt_tokens), work.Lengths(given.output_tokens)
    )
    path = profiles.write(rig.logs(), "kv", profiles.fifo(SLOTS, 600.0))
    cache = f"--num-gpu-blocks-override {given.blocks} --block-size {given.block_size}"
    found: dict[str, list[dict[str, Any]]] = {WITH: [], WITHOUT: []}
    with Engine(given.size, SLOTS, *cache.split()) as engine:
        state = engine.wait()
        print(
            f"{state['kv_blocks_total']} blocks, {state['kv_tokens_total']} tokens of the longest "
            f"contexts; {SLOTS} requests have about "
            f"{SLOTS * (given.prompt_tokens + given.output_tokens):.0f} tokens at their ends, in "
            f"groups of layers {state['kv_groups']}"
        )
        record.results |= {name: state[name] for name in ("kv_blocks_total", "kv_groups")}
        for number in range(given.rounds):
            for way in (WITH, WITHOUT)[:: -1 if number % 2 else 1]:
                if way == WITH:
                    with Sidecar(path, engine.url) as sidecar:
                        run_of = _load(engine, sidecar.port, kind, given, number)
                else:
                    run_of = _load(engine, engine.port, kind, given, number)
                engine.rest()
                found[way].append(_counted(*run_of))
                print(f"round {number + 1}, {way}: {found[way][-1]}", flush=True)
    _report(found, record)


def _load(
    engine: Engine, port: int, kind: work.Kind, given: argparse.Namespace, number: int
) -> tuple[Loaded[Counters], Counters]:
    """The run, and the engine's counters when it began."""
    began = engine.counters()
    loaded = closed_loop(
        Target(port),
        work.endless((kind,), 1.0, SEED + number),
        engine.counters,
        clients=SLOTS,
        warm_s=given.warm_s,
        seconds=given.seconds,
    )
    return loaded, began


def _counted(loaded: Loaded[Counters], began: Counters) -> dict[str, Any]:
    """Of the window; `preemptions_before` it: since the run began, while it warmed up."""
    window = loaded.after.since(loaded.before)
    return asdict(window) | {
        "preemptions_before": loaded.before.since(began).preemptions,
        "tokens_per_s": round(window.tokens_per_s, 1),
        "at_once": round(sum(_within(answer, loaded) for answer in loaded.answers), 1),
        "codes": sorted({answer.code for answer in loaded.answers if answer.code is not None}),
    }


def _within(answer: Answer, loaded: Loaded[Counters]) -> float:
    """The share of the window in which it was between first and last token."""
    if answer.first_s is None or answer.last_s is None:
        return 0.0
    overlap = min(answer.last_s, loaded.until_s) - max(answer.first_s, loaded.from_s)
    return max(0.0, overlap) / loaded.seconds


def _report(found: dict[str, list[dict[str, Any]]], record: Record) -> None:
    record.results["ways"] = found
    rows = [
        [
            way,
            *(shown(median(each[name] for each in own), ".0f") for name in _SHOWN),
            f"{median(each['tokens_per_s'] for each in own):.1f}",
            f"{median(each['finished'] / each['at_s'] for each in own):.2f}",
        ]
        for way, own in found.items()
    ]
    head = (
        "", "preemptions", "as reported", "warming up", "streams at once", "prompt tokens",
        "tokens/s", "requests/s",
    )  # fmt: skip
    print(table(head, rows))
    ratios = [
        mine["tokens_per_s"] / theirs["tokens_per_s"]
        for mine, theirs in zip(found[WITH], found[WITHOUT], strict=True)
    ]
    record.results["ratios"] = ratios
    without = min(each["preemptions"] for each in found[WITHOUT])
    most = max(each["preemptions"] + each["preemptions_before"] for each in found[WITH])
    exact = all(
        each["preemptions"] == each["preempted_reported"] for own in found.values() for each in own
    )
    record.judge(
        verdict("preemptions without the rule", without, 1, ".0f"),
        at_most("preemptions with it, from the start", most, 0, ".0f"),
        verdict("tokens/s with it over without", median(ratios), 1.0, ".3f"),
        verdict("preemptions as reported in /v1/capabilities are vLLM's", float(exact), 1.0, ".0f"),
    )
