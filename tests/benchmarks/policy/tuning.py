"""Compares the slots that `orch tune` finds with the best of an exhaustive sweep.

The sweep gives the engine every power of two of slots up to its own (or `--sizes`), keeps more
clients than that busy, and measures tokens per second and the time per token of each answer. The
best is the number with the most tokens per second whose 95th percentile keeps the SLO.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from orch_sidecar.tools.facts.labels.figures import percentile
from tests.benchmarks.policy import profiles, rig, work
from tests.benchmarks.policy.call import Answer, Target
from tests.benchmarks.policy.load import closed_loop
from tests.benchmarks.policy.record import Record, Verdict, table
from tests.benchmarks.policy.rig import Engine, NotServing, Sidecar
from vllm_plugin.contracts import profile
from vllm_plugin.contracts.profile import ServiceClass

SLOTS: Final = 64
SIZES: Final = (1, 2, 4, 8, 16, 32, 64)
FACTOR: Final = 2.0
LEAST_TOKENS: Final = 8
# Before a size is measured, for each of its slots: its first prompts have to be read.
WARM_S: Final = 0.15


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size", choices=rig.SIZES, default="small")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=6.0, help="of each size and round")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="of the sweep")
    parser.add_argument("--slo-tpot-ms", type=float, default=100.0)
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--output-tokens", type=int, default=48)


def quick(given: argparse.Namespace) -> None:
    given.rounds = 1


class Measured(NamedTuple):
    """What a number of slots gave."""

    tokens_per_s: float
    tpot_p95_ms: float


def run(given: argparse.Namespace, record: Record) -> None:
    found: dict[int, list[Measured]] = {size: [] for size in given.sizes}
    with Engine(given.size, SLOTS) as engine:
        engine.wait()
        tuned = _tune(engine, given)
        for number in range(given.rounds):
            for size in given.sizes[:: -1 if number % 2 else 1]:
                found[size].append(_measure(engine, size, given))
    middle = {
        size: Measured(*(median(each[at] for each in own) for at in (0, 1)))
        for size, own in found.items()
    }
    kept = [size for size in middle if middle[size].tpot_p95_ms <= given.slo_tpot_ms]
    kept = kept or [min(middle)]
    best = max(kept, key=lambda size: middle[size].tokens_per_s)
    rows = [
        [
            str(size),
            f"{each.tokens_per_s:.0f}",
            f"{each.tpot_p95_ms:.0f}",
            "best" if size == best else "" if size in kept else "misses the SLO",
        ]
        for size, each in middle.items()
    ]
    print(table(("slots", "tokens/s", "TPOT p95 ms", ""), rows))
    record.results |= {"sweep": found, "tuned": tuned, "best": best}
    apart = max(tuned / best, best / tuned)
    record.judge(
        Verdict(
            f"slots by orch tune, {tuned}, and by the sweep, {best}: apart by a factor",
            f"{apart:.2f}",
            f"<= {FACTOR:g}",
            apart <= FACTOR,
        )
    )


def _tune(engine: Engine, given: argparse.Namespace) -> int:
    path, plot = rig.logs() / "tuned.yaml", rig.logs() / "tuned.png"
    command = [sys.executable, "-m", "orch_sidecar", "tune", "--url", engine.url]
    command += ["--slo-tpot-ms", str(given.slo_tpot_ms), "--seconds", str(given.seconds)]
    command += ["--input-tokens", str(given.prompt_tokens)]
    command += ["--output-tokens", str(given.output_tokens)]
    command += ["--output", str(path), "--plot", str(plot)]
    done = subprocess.run(command, capture_output=True, text=True)
    print(done.stdout)
    if done.returncode:
        raise NotServing(f"orch tune: {done.stderr}")
    return int(profile.load(str(Path(path))).slots.value)


def _measure(engine: Engine, size: int, given: argparse.Namespace) -> Measured:
    path = profiles.write(rig.logs(), f"batch-{size}", profiles.batch_of(size))
    with Sidecar(path, engine.url) as sidecar:
        loaded = closed_loop(
            Target(sidecar.port, lambda request: b"X-Orch-Class: bulk\r\n"),
            _requests(given.prompt_tokens, given.output_tokens),
            engine.counters,
            clients=size + 8,
            warm_s=2.0 + WARM_S * size,
            seconds=given.seconds,
        )
    engine.rest()
    each_ms = [tpot for answer in loaded.answers if (tpot := _tpot_ms(answer)) is not None]
    late = percentile(each_ms, 95)
    if late is None:
        raise NotServing(f"{size} slots: hardly anything was answered")
    return Measured(loaded.after.since(loaded.before).tokens_per_s, late)


def _requests(prompt: int, output: int) -> Iterator[work.Request]:
    return (work.Request(0.0, ServiceClass.BULK, prompt, output, key) for key in count())


def _tpot_ms(answer: Answer) -> float | None:
    """Of an answer that was cut off, too, if it has enough tokens."""
    if answer.events < LEAST_TOKENS or answer.first_s is None or answer.last_s is None:
        return None
    return 1000 * (answer.last_s - answer.first_s) / (answer.events - 1)
