"""Measures interactive and bulk requests at twice the capacity, under each policy.

70 % of the requests are bulk, with 8 times the prompt and answer length of interactive ones. The
same run measures the capacity, by a saturated closed loop of the same mix without a sidecar, and
the SLO, as 3 times the p95 TTFT of interactive requests alone through the sidecar. Then each policy
gets the same arrivals, in interleaved rounds:

    policy           the shipped profile, with that SLO
    fifo             one class in order of arrival, no SLO, no reserve
    direct           no sidecar: vLLM's own queue
    direct-priority  no sidecar, with the class as vLLM's `priority`
"""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from dataclasses import asdict, replace
from typing import Final

from tests.benchmarks.policy import profiles, rig, summary, work
from tests.benchmarks.policy.call import Target
from tests.benchmarks.policy.load import closed_loop, open_loop
from tests.benchmarks.policy.mixed_report import (
    BULK,
    DIRECT,
    FIFO,
    INTERACTIVE,
    POLICY,
    PRIORITY,
    Turn,
    report,
)
from tests.benchmarks.policy.record import Record
from tests.benchmarks.policy.rig import Engine, NotServing, Sidecar

POLICIES: Final = (POLICY, FIFO, DIRECT, PRIORITY)

LOAD: Final = 2.0  # times the capacity
BULK_SHARE: Final = 0.7
TIMES_LONGER: Final = 8.0
SLO_TIMES: Final = 3.0
WARM_S: Final = 4.0
SEED: Final = 20_261_121

# Of the time that one interactive request takes alone, so that they hardly ever meet.
_ALONE_SHARE: Final = 0.25


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size", choices=rig.SIZES, default="small")
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=25.0, help="of each policy and round")
    parser.add_argument(
        "--prompt-tokens", type=float, default=24.0, help="mean tokens, interactive"
    )
    parser.add_argument("--output-tokens", type=float, default=8.0, help="mean tokens, interactive")
    parser.add_argument("--max-wait-s", type=float, default=15.0, help="bound for bulk requests")
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument(
        "--engine-arguments",
        # What an operator sets for an engine this slow at prompts: about 1000 tokens/s, so that
        # a prompt of 512 tokens, the shipped default, would stop every stream for half a second.
        default="--max-num-batched-tokens 256 --long-prefill-token-threshold 64",
    )


def quick(given: argparse.Namespace) -> None:
    given.rounds, given.seconds = 1, 8.0


def run(given: argparse.Namespace, record: Record) -> None:
    interactive = work.Kind(
        INTERACTIVE,
        1 - BULK_SHARE,
        work.Lengths(given.prompt_tokens),
        work.Lengths(given.output_tokens),
    )
    mix = work.two_classes(interactive, TIMES_LONGER)
    with Engine(given.size, given.slots, *given.engine_arguments.split()) as engine:
        engine.wait()
        capacity = _capacity(engine, mix, given)
        print(f"capacity: {capacity:.2f} requests/s of this mix, in {given.slots} slots")
        slo_ms = _slo_ms(engine, interactive, given, record)
        rate = LOAD * capacity
        record.results |= {"capacity_per_s": capacity, "rate_per_s": rate, "slo_ms": slo_ms}
        turns: dict[str, list[Turn]] = {name: [] for name in given.policies.split(",")}
        for number in range(given.rounds):
            arrivals = work.arrivals(mix, rate, WARM_S + given.seconds, SEED + number)
            order = list(turns)[:: -1 if number % 2 else 1]
            for name in order:
                turns[name].append(_turn(engine, name, arrivals, slo_ms, given))
                print(f"round {number + 1}, {name}: {_brief(turns[name][-1], slo_ms)}", flush=True)
    report(turns, slo_ms, given.max_wait_s, record)


def _capacity(engine: Engine, mix: work.Mix, given: argparse.Namespace) -> float:
    """Requests per second of the saturated engine: tokens per second over their mean number."""
    loaded = closed_loop(
        Target(engine.port),
        work.endless(mix, 1.0, SEED - 1),
        engine.counters,
        clients=2 * given.slots,
        warm_s=WARM_S,
        seconds=max(5.0, 0.6 * given.seconds),
    )
    engine.rest()
    tokens_per_s = loaded.after.since(loaded.before).tokens_per_s
    return tokens_per_s / work.mean_output(mix)


def _slo_ms(engine: Engine, kind: work.Kind, given: argparse.Namespace, record: Record) -> float:
    """3 times the p95 TTFT of interactive requests alone, through the sidecar."""
    profile = profiles.write(rig.logs(), "unloaded", profiles.policy(None, given.max_wait_s))
    alone: work.Mix = (replace(kind, share=1.0),)
    with Sidecar(profile, engine.url) as sidecar:
        target = _target(POLICY, sidecar.port)
        probe = closed_loop(
            target,
            work.endless(alone, 1.0, SEED - 2),
            engine.counters,
            clients=1,
            warm_s=0.5,
            seconds=2.0,
        )
        done = [answer for answer in probe.answers if answer.complete]
        each_s = 2.5 / max(1, len(done))
        rate, seconds = _ALONE_SHARE / each_s, 0.8 * given.seconds
        loaded = open_loop(
            target,
            work.arrivals(alone, rate, seconds, SEED - 3),
            engine.counters,
            warm_s=0.0,
            seconds=seconds,
            grace_s=5.0,
        )
    engine.rest()
    found = summary.summarize(loaded.answers, loaded.seconds, None)
    if found.ttft_p95 is None:
        raise NotServing(f"no interactive request was answered: {found.refused}")
    print(
        f"unloaded: p50 {found.ttft_p50} ms, p95 {found.ttft_p95} ms of {found.answered} "
        f"at {rate:.1f}/s, so the SLO is {SLO_TIMES * found.ttft_p95.ms:.0f} ms"
    )
    record.results["unloaded"] = asdict(found) | {"rate_per_s": rate}
    return SLO_TIMES * found.ttft_p95.ms


def _target(name: str, port: int) -> Target:
    if name == POLICY:
        return Target(port, lambda request: f"X-Orch-Class: {request.service_class}\r\n".encode())
    if name == PRIORITY:  # vLLM: a lower one is served earlier
        return Target(port, body=lambda request: {"priority": int(request.service_class is BULK)})
    return Target(port)


def _turn(
    engine: Engine,
    name: str,
    arrivals: list[work.Request],
    slo_ms: float,
    given: argparse.Namespace,
) -> Turn:
    bound = given.max_wait_s
    if name == POLICY:
        document = profiles.policy(slo_ms, bound)
    else:
        document = profiles.fifo(given.slots, bound)
    path = profiles.write(rig.logs(), name, document)
    direct = name in (DIRECT, PRIORITY)
    with nullcontext() if direct else Sidecar(path, engine.url, name=f"sidecar-{name}") as front:
        loaded = open_loop(
            _target(name, engine.port if front is None else front.port),
            arrivals,
            engine.counters,
            warm_s=WARM_S,
            seconds=given.seconds,
            grace_s=1.5 * slo_ms / 1000,
        )
    engine.rest()
    answers = summary.counted(loaded.answers, loaded.from_s, loaded.until_s)
    return Turn(loaded, answers)


def _brief(turn: Turn, slo_ms: float) -> str:
    found = turn.of(INTERACTIVE, slo_ms)
    median_ms, worst_ms = summary.lateness_ms(turn.answers)
    return (
        f"{turn.tokens_per_s:.0f} tok/s, interactive p95 {found.ttft_p95} ms, "
        f"{100 * (found.within_slo or 0):.0f} % within; "
        f"generator late by {median_ms:.1f} ms, at most {worst_ms:.0f} ms"
    )
