"""What open pages cost a sidecar: CPU time with and without readers of its live document.

    python -m tests.benchmarks.live_readers [--readers 20] [--seconds 20] [--rounds 5]

A sidecar as a process of its own, in front of a scripted engine with 8 slots under load (12
clients, both classes, a queue, so that the document differs each time that it is built).
Rounds without and with readers alternate; each reader is a connection that reads `GET /v1/live`.
Prints the CPU time of the sidecar's process as a share of one core, and what the readers got.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
from contextlib import suppress
from pathlib import Path

from orch_sidecar.tools.local.stack import free_port, get_json
from tests.integration.client import CHAT, Client
from tests.integration.scripted_engine import ScriptedEngine
from tests.integration.working import step, words

_CLIENTS = 12


def cpu_s(pid: int) -> float:
    """Seconds that a process has run, on any core."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


async def load(port: int, number: int) -> None:
    """Requests, one after the other."""
    headers = [("X-Orch-Class", "bulk" if number % 3 == 0 else "interactive")]
    client = await Client.connect(port)
    while True:
        await client.post(CHAT, headers, stream=True)


async def read(port: int, got: list[int]) -> None:
    """One reader; counts the bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /v1/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
    try:
        while data := await reader.read(65_536):
            got.append(len(data))
    finally:
        writer.close()


async def share(pid: int, port: int, readers: int, seconds: float) -> tuple[float, list[int]]:
    """The CPU time of a process over the time, with so many readers, and what these got."""
    got: list[int] = []
    tasks = [asyncio.create_task(read(port, got)) for _ in range(readers)]
    await asyncio.sleep(1)  # the first document is the whole one
    got.clear()
    before, at = cpu_s(pid), asyncio.get_running_loop().time()
    await asyncio.sleep(seconds)
    used = (cpu_s(pid) - before) / (asyncio.get_running_loop().time() - at)
    counted = list(got)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return used, counted


async def run(options: argparse.Namespace) -> None:
    engine, port = ScriptedEngine(slots=8), free_port()
    engine.answer = words
    await engine.start()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "orch_sidecar", "sidecar", "--profile", "cloud",
        "--engine-url", engine.url, "--port", str(port), "--log-level", "ERROR",
    )  # fmt: skip
    tasks = [asyncio.create_task(step(engine))]
    try:
        while True:
            with suppress(OSError):
                status, _ = await asyncio.to_thread(get_json, f"http://127.0.0.1:{port}/readyz")
                if status == 200:
                    break
            await asyncio.sleep(0.1)
        tasks += [asyncio.create_task(load(port, number)) for number in range(_CLIENTS)]
        await asyncio.sleep(5)
        without, with_readers, size = [], [], 0.0
        for _ in range(options.rounds):
            without.append((await share(process.pid, port, 0, options.seconds))[0])
            used, got = await share(process.pid, port, options.readers, options.seconds)
            with_readers.append(used)
            size = sum(got) / options.readers / options.seconds
        differences = [b - a for a, b in zip(without, with_readers, strict=True)]
        print(f"{'':24}{'share of a core, median (least to most)':>42}")
        for name, values in (
            ("no reader", without),
            (f"{options.readers} readers", with_readers),
            ("difference", differences),
        ):
            low, mid, high = min(values), statistics.median(values), max(values)
            print(f"{name:24}{100 * mid:>16.2f} % ({100 * low:.2f} to {100 * high:.2f})")
        print(f"each reader got {size / 1000:.1f} kB/s")
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        process.terminate()
        await process.wait()
        await engine.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--readers", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=5)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
