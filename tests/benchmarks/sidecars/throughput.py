"""1, 2 and 4 sidecars at one engine, in interleaved rounds: what sharing it costs.

Each cell has sidecars of its own, and three windows: a backlog of bulk requests; interactive
requests beside bulk ones; and as many clients as slots that go from sidecar to sidecar, so that a
slot is free for each request and only has to be granted; meanwhile the engine is called for its
state, which takes a round trip as a claim and its offer do.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from tests.benchmarks.load import spread
from tests.benchmarks.sidecars.load import Window, closed_loop, percentile
from tests.benchmarks.sidecars.servers import SLOTS, sidecars, state

COUNTS: Final = (1, 2, 4)
CLIENTS: Final = 32
INTERACTIVE: Final = 8
TOKENS: Final = 32
_CALL_EVERY_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class Cell:
    """The figures of one cell. Times in milliseconds."""

    requests_per_s: float
    tokens_per_s: float
    rejected: float  # by the engine, per 10 000 requests that entered
    mixed_rejected: float
    least_share: float  # of the requests served, over an equal share
    most_share: float
    first_byte_p95: float
    interactive_p95: float  # to the first byte, beside bulk requests
    bulk_p95: float
    grant_p50: float  # wait for a slot that is free
    grant_p99: float
    grant_first_byte_p50: float
    grant_first_byte_p99: float
    answer_p50: float  # of the engine, to a small call, meanwhile
    answer_p99: float
    peak: int


async def _measured(ports: list[int], seconds: float, engine_port: int) -> Cell:
    seen: list[dict[str, Any]] = []  # of the engine, at both ends of each window

    async def look() -> None:
        seen.append(await state(engine_port))

    backlog = await closed_loop(ports, bulk=CLIENTS, tokens=TOKENS, seconds=seconds, look=look)
    mixed = await closed_loop(
        ports,
        bulk=CLIENTS - INTERACTIVE,
        interactive=INTERACTIVE,
        tokens=TOKENS,
        seconds=seconds,
        look=look,
    )
    answers_ms: list[float] = []
    calling = asyncio.create_task(_call(engine_port, answers_ms))
    grants = await closed_loop(
        ports, interactive=SLOTS, tokens=8, seconds=seconds / 2, warm_s=0.5, roams=True, look=look
    )
    calling.cancel()
    for name, window in (("backlog", backlog), ("mixed", mixed), ("grants", grants)):
        if failures := window.failures():
            print(f"  {name}, {len(ports)} sidecars: {dict(failures)}", flush=True)
    shares = _shares(backlog, ports)
    waits = [each.queue_ms for each in grants.first_in_window]
    first_bytes = [each * 1000 for each in grants.first_bytes_s(interactive=True)]
    return Cell(
        requests_per_s=backlog.served / backlog.seconds,
        tokens_per_s=backlog.tokens / backlog.seconds,
        rejected=_rejected(*seen[0:2]),
        mixed_rejected=_rejected(*seen[2:4]),
        least_share=min(shares),
        most_share=max(shares),
        first_byte_p95=percentile(backlog.first_bytes_s(interactive=False), 95) * 1000,
        interactive_p95=percentile(mixed.first_bytes_s(interactive=True), 95) * 1000,
        bulk_p95=percentile(mixed.first_bytes_s(interactive=False), 95) * 1000,
        grant_p50=percentile(waits, 50),
        grant_p99=percentile(waits, 99),
        grant_first_byte_p50=percentile(first_bytes, 50),
        grant_first_byte_p99=percentile(first_bytes, 99),
        answer_p50=percentile(answers_ms, 50),
        answer_p99=percentile(answers_ms, 99),
        peak=seen[-1]["peak"],
    )


async def _call(engine_port: int, answers_ms: list[float]) -> None:
    """Calls the engine for its state again and again, and notes how long each answer takes."""
    loop = asyncio.get_running_loop()
    while True:
        began = loop.time()
        await state(engine_port)
        answers_ms.append((loop.time() - began) * 1000)
        await asyncio.sleep(_CALL_EVERY_S)


def _rejected(before: dict[str, Any], after: dict[str, Any]) -> float:
    entered: int = after["requests_total"] - before["requests_total"]
    rejected: int = after["no_slot_total"] - before["no_slot_total"]
    return 1e4 * rejected / max(1, entered)


def _shares(window: Window, ports: list[int]) -> list[float]:
    served: dict[int, float] = dict.fromkeys(ports, 0.0)
    for each in window.answers:
        if each.whole:
            served[each.port] += each.counted / each.events
    equal = sum(served.values()) / len(ports)
    return [each / equal for each in served.values()]


async def _cell(count: int, seconds: float, engine_port: int) -> Cell:
    with sidecars(count, engine_port) as made:
        for each in made:
            await each.ready()
        cell = await _measured([each.port for each in made], seconds, engine_port)
    await _rest(engine_port)
    return cell


async def _rest(engine_port: int) -> None:
    """Returns when the engine is idle, and its last sidecar has left."""
    async with asyncio.timeout(30):
        while True:
            reported = await state(engine_port)
            if not reported["leased"] and not reported["foreign"] and not reported["sidecars"]:
                return
            await asyncio.sleep(0.05)


async def _directly(seconds: float, engine_port: int) -> list[float]:
    """Times to the first byte at the engine itself, by as many clients as slots, in ms."""
    window = await closed_loop(
        [engine_port], interactive=SLOTS, tokens=8, seconds=seconds / 2, warm_s=0.5
    )
    await _rest(engine_port)
    return [each * 1000 for each in window.first_bytes_s(interactive=True)]


async def run(engine_port: int, rounds: int, seconds: float) -> list[str]:
    """Runs the rounds and prints the table. Returns what must not have happened."""
    cells: dict[int, list[Cell]] = defaultdict(list)
    direct: list[list[float]] = []
    for number in range(rounds):
        direct.append(await _directly(seconds, engine_port))
        for count in COUNTS if number % 2 else reversed(COUNTS):
            cell = await _cell(count, seconds, engine_port)
            cells[count].append(cell)
            print(
                f"round {number + 1}, {count}: {cell.requests_per_s:.1f} requests/s, "
                f"{cell.tokens_per_s:.0f} tokens/s, {cell.rejected:.0f} no_slot in 10 000, "
                f"interactive p95 {cell.interactive_p95:.0f} ms, "
                f"grant p50 / p99 {cell.grant_p50:.1f} / {cell.grant_p99:.1f} ms",
                flush=True,
            )
    _print_table(cells, direct)
    peak = max(each.peak for rows in cells.values() for each in rows)
    return [] if peak <= SLOTS else [f"the engine had {peak} sequences in {SLOTS} slots"]


def _print_table(cells: dict[int, list[Cell]], direct: list[list[float]]) -> None:
    def row(title: str, values: list[str]) -> None:
        print(f"| {title} | {' | '.join(values)} |")

    def medians(title: str, name: str, form: str) -> None:
        row(title, [form.format(median(getattr(c, name) for c in cells[n])) for n in COUNTS])

    print()
    row("sidecars", [str(count) for count in COUNTS])
    row("---", ["---"] * len(COUNTS))
    medians("requests/s", "requests_per_s", "{:.1f}")
    medians("tokens/s", "tokens_per_s", "{:.0f}")
    ratios = {
        count: [
            many.tokens_per_s / one.tokens_per_s
            for many, one in zip(cells[count], cells[1], strict=True)
        ]
        for count in COUNTS
    }
    row("tokens/s over those of one", [spread(ratios[count]) for count in COUNTS])
    medians("`no_slot` per 10 000 requests", "rejected", "{:.0f}")
    medians("the same, interactive beside bulk", "mixed_rejected", "{:.0f}")
    shares = [
        f"{median(c.least_share for c in cells[n]):.2f} to "
        f"{median(c.most_share for c in cells[n]):.2f}"
        for n in COUNTS
    ]
    row("served by a sidecar, over an equal share", shares)
    medians("first byte p95, ms", "first_byte_p95", "{:.0f}")
    medians("first byte p95, interactive beside bulk, ms", "interactive_p95", "{:.0f}")
    medians("first byte p95, that bulk, ms", "bulk_p95", "{:.0f}")
    medians("wait for a free slot p50, ms", "grant_p50", "{:.2f}")
    medians("wait for a free slot p99, ms", "grant_p99", "{:.2f}")
    medians("the engine's own answer to a call p50, ms", "answer_p50", "{:.2f}")
    medians("the engine's own answer to a call p99, ms", "answer_p99", "{:.2f}")
    medians("first byte with a free slot p50, ms", "grant_first_byte_p50", "{:.1f}")
    medians("first byte with a free slot p99, ms", "grant_first_byte_p99", "{:.1f}")
    medians("most sequences in the engine", "peak", "{:.0f}")
    p50, p99 = (median(percentile(each, percent) for each in direct) for percent in (50, 99))
    print(f"\nfirst byte at the engine itself, {SLOTS} clients: p50 {p50:.1f} ms, p99 {p99:.1f} ms")
