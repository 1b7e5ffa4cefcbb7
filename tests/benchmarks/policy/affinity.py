"""Measures what placing by prefix does for the hits of the prefix caches, and for the first token.

Two engines with a prefix cache each behind one sidecar replay requests with shared prefixes (of
Mooncake's trace; times and lengths by a factor), with and without prefix affinity, in interleaved
rounds. Each round has a cache salt of its own, so that it begins with cold caches, and a sidecar of
its own, which knows no prefix yet. The ratio of one engine that serves all is what could be
reached.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from orch_sidecar.tools.facts.labels.figures import percentile
from orch_sidecar.tools.traces import Trace, TracedRequest, read
from tests.benchmarks.policy import profiles, rig, work
from tests.benchmarks.policy.call import Answer, Target
from tests.benchmarks.policy.load import open_loop
from tests.benchmarks.policy.record import Record, table, verdict
from tests.benchmarks.policy.rig import Engine, NotServing, Sidecar
from vllm_plugin.contracts.profile import ServiceClass

SLOTS: Final = 8
BLOCK: Final = 32  # tokens of the engines' blocks; vLLM on a CPU takes multiples of 32
GRACE_S: Final = 60.0
EXCERPT: Final = Path(__file__).parents[2] / "traces" / "mooncake_shared.jsonl"
WAYS: Final = {"by load alone": False, "by prefix": True}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size", choices=rig.SIZES, default="tiny")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--trace", type=Path, default=EXCERPT)
    parser.add_argument("--requests", type=int, default=330, help="of the trace")
    parser.add_argument("--time-factor", type=float, default=0.5)
    parser.add_argument("--length-factor", type=float, default=1 / 16)


def quick(given: argparse.Namespace) -> None:
    given.requests = 100


@dataclass(frozen=True, slots=True)
class Turn(work.Request):
    """A request of the trace: its first tokens are those of its prefix blocks."""

    blocks: tuple[int, ...] = ()
    block_tokens: int = BLOCK

    def body(self, more: dict[str, Any] | None = None) -> bytes:
        tokens: list[int] = []
        for block in self.blocks:
            tokens += random.Random(block).choices(range(16, 240), k=self.block_tokens)
        tokens = tokens[: self.prompt_tokens]
        rest = random.Random(-self.key - 1).choices(range(16, 240), k=self.prompt_tokens)
        return work.completion(tokens + rest[len(tokens) :], self.output_tokens, more)


def turns(trace: Trace, number: int) -> list[Turn]:
    def turn(key: int, each: TracedRequest) -> Turn:
        longest = work.CONTEXT_TOKENS - 256
        prompt, output = min(each.prompt_tokens, longest), min(each.output_tokens, 255)
        blocks = each.prefix_blocks
        assert trace.block_tokens is not None
        return Turn(
            each.at_s, ServiceClass.INTERACTIVE, prompt, output, key, blocks, trace.block_tokens
        )

    return [turn(key, each) for key, each in enumerate(trace.requests[:number])]


def reachable(requests: Sequence[Turn]) -> float:
    """The share of prompt tokens that a single engine with room for all of them would have."""
    known: set[tuple[int, ...]] = set()
    hits = 0
    for each in requests:
        held = 0
        for end in range(1, len(each.blocks) + 1):
            if each.blocks[:end] in known:
                held = end
            known.add(each.blocks[:end])
        hits += min(held * each.block_tokens, each.prompt_tokens)
    return hits / sum(each.prompt_tokens for each in requests)


def run(given: argparse.Namespace, record: Record) -> None:
    trace = read(given.trace).scaled(time=given.time_factor, lengths=given.length_factor)
    requests = turns(trace, given.requests)
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    arguments = ("--enable-prefix-caching", "--block-size", str(BLOCK))
    with (
        Engine(given.size, SLOTS, *arguments, name="first", core=0) as first,
        Engine(given.size, SLOTS, *arguments, name="second", core=1) as second,
    ):
        engines = (first, second)
        for engine in engines:
            engine.wait()
        for number in range(given.rounds):
            for way in list(WAYS)[:: -1 if number % 2 else 1]:
                salt = f"{way} {number}"
                found[way].append(_replay(engines, requests, WAYS[way], salt))
    limit = reachable(requests)
    rows = []
    for way, rounds in found.items():
        rows.append([way] + [f"{median(each[name] for each in rounds):.3g}" for name in _NAMES])
    print(table(("placed", "hit ratio", "TTFT p50 ms", "p95 ms", "answered", "prefix hits"), rows))
    print(f"one engine that serves all would reach a hit ratio of {limit:.3f}")
    record.results |= {"rounds": found, "reachable": limit}
    without, by_prefix = (median(each["hit_ratio"] for each in found[way]) for way in WAYS)
    record.judge(
        verdict("hit ratio by prefix over that by load", by_prefix / max(without, 1e-9), 1.2),
        verdict("hit ratio by prefix over what one engine reaches", by_prefix / limit, 0.8),
    )


_NAMES: Final = ("hit_ratio", "ttft_p50_ms", "ttft_p95_ms", "answered", "placed_by_prefix")


def _replay(
    engines: Sequence[Engine], requests: Sequence[Turn], by_prefix: bool, salt: str
) -> dict[str, float]:
    pools = [
        {"name": f"p{number}", "url": engine.url, "profile": profiles.BASE}
        for number, engine in enumerate(engines)
    ]
    before = [_prefix_cache(engine) for engine in engines]
    with Sidecar(
        profiles.BASE, pools=pools, arguments=("--prefix-affinity", str(by_prefix))
    ) as sidecar:
        target = Target(sidecar.port, body=lambda request: {"cache_salt": salt})
        seconds = requests[-1].at_s + 0.1
        loaded = open_loop(
            target, requests, lambda: None, warm_s=0.0, seconds=seconds, grace_s=GRACE_S
        )
        placed = sidecar.metric("orch_prefix_placements_total", prefix="hit")
    for engine in engines:
        engine.rest()
    after = [_prefix_cache(engine) for engine in engines]
    queries, hits = (
        sum(now[name] - then[name] for now, then in zip(after, before, strict=True))
        for name in ("queries_total", "hits_total")
    )
    first = [ttft for answer in loaded.answers if (ttft := _ttft_ms(answer)) is not None]
    if not first or not queries:
        raise NotServing(f"nothing was answered: {[each.code for each in loaded.answers][:5]}")
    return {
        "hit_ratio": hits / queries,
        "ttft_p50_ms": percentile(first, 50) or 0.0,
        "ttft_p95_ms": percentile(first, 95) or 0.0,
        "answered": float(len(first)),
        "placed_by_prefix": placed,
    }


def _prefix_cache(engine: Engine) -> dict[str, int]:
    found: dict[str, int] = engine.capabilities()["prefix_cache"]
    return found


def _ttft_ms(answer: Answer) -> float | None:
    if not answer.complete or answer.first_s is None:
        return None
    return 1000 * (answer.first_s - answer.request.at_s)
