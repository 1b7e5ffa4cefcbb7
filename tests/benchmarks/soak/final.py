"""The checks at the end, without load, and after the sidecar has exited."""

from __future__ import annotations

import asyncio
import json
import re
import time
from pathlib import Path
from typing import Final

from tests.benchmarks.soak.processes import Engine, Metrics, SidecarProcess
from tests.benchmarks.soak.report import Readings, Report
from tests.benchmarks.soak.responses import ask
from tests.benchmarks.soak.verdict import Judge
from tests.patience import HANG_S

# The connection on which the ends of leases are asked for stays for 15 s, one per pool.
_DESCRIPTORS_PER_POOL: Final = 1
# Files are read in a thread, of which a pool of threads makes a few.
_THREADS: Final = 6
# What is kept is bounded: 8192 ids of ended requests (2 MiB), what is learned, and what the
# allocator keeps of the largest moment: 40 bodies of 400 kB. A leak of 1 KiB per request would be
# 48 MiB in the 50 000 lifecycles of a long scene.
RSS_GROWTH_BYTES: Final = 24 * 2**20
# Without a warm-up: modules and buffers of the first use are in it, too.
RSS_FIRST_GROWTH_BYTES: Final = 48 * 2**20

# Enough of a traceback to see where it comes from.
_ENTRY_LINES: Final = 60
_LINE: Final = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} ([A-Z]+) \S+: ")
# Warnings and errors that are the right words for what the soak does.
_EXPECTED: Final = re.compile(
    r"(WARNING orch\.engine: (engine (at \S+ )?[a-z]+: "
    r"|lease [0-9a-f.]+: (its end could not be confirmed|still in the engine|the engine's answer))"
    r"|WARNING orch\.sidecar: pool \S+: no connection to "
    r"|ERROR orch\.sidecar: the (configuration is|API keys are) not reloaded: )"
)


async def quiet(sidecar: SidecarProcess, engines: list[Engine], report: Report) -> None:
    """Waits until nothing is in sidecar and engines; reports what still is after the time."""
    began = time.monotonic()
    while left := _left(await sidecar.metrics()):
        if time.monotonic() - began > HANG_S:
            report.breach("something is left when all is quiet", ", ".join(left))
            break
        await asyncio.sleep(0.05)
    else:
        report.note(f"quiet after {time.monotonic() - began:.2f} s")
    for engine in engines:
        counted = await engine.count()
        if counted["present"] or counted["leased"]:
            report.breach("something is left in an engine", f"{engine.plan.name}: {counted}")


def _left(metrics: Metrics) -> list[str]:
    names = ("orch_leases", "orch_slots_leased", "orch_leases_closing", "orch_queue_depth")
    return [
        f"{name} {pool} {value:g}"
        for name in names
        for pool, value in metrics.by(name, "pool").items()
        if value
    ]


async def settled(sidecar: SidecarProcess, start: Readings, pools: int) -> Readings:
    """Readings once tasks and descriptors are no more than they may be, or do not come down."""
    began = time.monotonic()
    while True:
        now = await sidecar.readings()
        most = start.descriptors + _DESCRIPTORS_PER_POOL * pools
        fine = now.tasks <= start.tasks and now.descriptors <= most
        if fine or time.monotonic() - began > HANG_S:
            return now
        await asyncio.sleep(0.25)


def compare(
    start: Readings, warm: Readings | None, end: Readings, pools: int, report: Report
) -> None:
    """`warm`: after the warm-up, when all has been done once; None: there was none."""
    report.note(f"start {start}")
    if warm is not None:
        report.note(f"warm  {warm}")
    report.note(f"end   {end}")
    if end.tasks > start.tasks:
        report.breach("tasks are left", f"{start.tasks} at the start, {end.tasks} at the end")
    if end.descriptors > start.descriptors + _DESCRIPTORS_PER_POOL * pools:
        detail = f"{start.descriptors} at the start, {end.descriptors} at the end"
        report.breach("descriptors are left", detail)
    if end.threads > start.threads + _THREADS:
        report.breach("threads are left", f"{start.threads}, then {end.threads}")
    grown = end.rss_bytes - (warm or start).rss_bytes
    most = RSS_GROWTH_BYTES if warm is not None else RSS_FIRST_GROWTH_BYTES
    if grown > most:
        detail = f"by {grown / 2**20:.1f} MiB, {most / 2**20:.0f} MiB may be"
        report.breach("memory has grown", detail)


async def check_capabilities(sidecar: SidecarProcess, key: str, report: Report) -> None:
    """What the sidecar tells the world when nothing is in it."""
    answer = await ask(sidecar.port, "GET", "/v1/capabilities", f"Authorization: Bearer {key}\r\n")
    for engine in json.loads(answer.body)["engines"]:
        wrong = {
            name: engine[name]
            for name in ("leased", "foreign", "oversubscription_violations_total")
            if engine[name]
        }
        free = min(engine["slots_total"], engine["effective_capacity"])
        if engine["state"] != "ready" or engine["slots_free"] != free:
            shown = ("state", "slots_free", "slots_total", "effective_capacity")
            wrong |= {name: engine[name] for name in shown}
        if wrong or any(engine["queue"].values()):
            detail = f"{engine['pool']}: {wrong} queue {engine['queue']}"
            report.breach("capabilities of an idle pool", detail)


def account(metrics: Metrics, engines: list[Engine], judge: Judge, report: Report) -> None:
    """The metrics account for everything that clients have seen: for more, as some left."""
    unknown = metrics.sum("orch_answers_total", tokens="unknown")
    without = sum(engine.without_usage for engine in engines)
    if unknown > without:
        detail = f"of {unknown:g} whole answers nothing is known, {without} reported nothing"
        report.breach("token usage is lost", detail)
    known = metrics.sum("orch_output_tokens_total")
    if known < judge.output_tokens:
        detail = f"orch_output_tokens_total {known:g}, clients got {judge.output_tokens} and more"
        report.breach("token usage is lost", detail)
    for status, seen in judge.failures.items():
        outcomes = metrics.by("orch_requests_total", "outcome", status=str(status))
        bad = sum(count for name, count in outcomes.items() if name not in ("ok", "cancelled"))
        if bad < seen:
            detail = f"status {status}: {bad:g} are counted, clients got {seen}: {outcomes}"
            report.breach("failures are counted as served", detail)
    internal = metrics.sum("orch_requests_total", outcome="internal_error")
    if internal:
        report.breach("internal errors", f"orch_requests_total counts {internal:g}")


def check_log(path: Path, report: Report) -> None:
    """Nothing in the log but what belongs there. Lines without a time belong to the one before."""
    entries: list[list[str]] = []
    with path.open(errors="replace") as lines:
        for line in lines:
            if _LINE.match(line) or not entries:
                entries.append([])
            if len(entries[-1]) < _ENTRY_LINES:
                entries[-1].append(line.rstrip()[:400])
    for entry in entries:
        match = _LINE.match(entry[0])
        if match is None:
            report.breach("a line of the log without a time", "\n    ".join(entry))
        elif match[1] not in ("INFO", "DEBUG"):
            text = entry[0][match.start(1) :]
            if _EXPECTED.match(text) is None:
                report.breach(f"a line of the log: {text[:60]}", "\n    ".join(entry))
