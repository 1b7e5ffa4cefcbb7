"""`python -m tests.benchmarks.instructions`: machine instructions per request.

Unlike a time, a count of instructions is the same on a busy and on an idle machine, so that it
shows a change of one percent. The sidecar runs under Valgrind (Debian package valgrind), which
counts the instructions outside the kernel. Each cell sends a fixed number of requests over
connections that are open already, after WARM_UP of them, for Python to specialize the code that
runs.

It counts twice: twice so many requests, and then so many within the same time. The difference is
what requests cost: what the sidecar executes beside them, with the time, is in both counts. Each
begins and ends when the last spans have been exported.

Each client waits for its answer before it asks again, so that a cell is the same sequence of events
in each run; only `queue` has more clients than the engine has slots.
"""

from __future__ import annotations

import argparse
import http.client
import json
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.benchmarks.proxy import build, processes
from tests.benchmarks.proxy.targets import (
    FLOOR,
    PLANS,
    SLOTS,
    Plan,
    Setting,
    baseline,
    stop_all,
    traced,
)
from tests.benchmarks.proxy.targets import sidecar as this_checkout

WARM_UP: Final = 400
REQUESTS: Final = 384
"""A multiple of what the sidecar does many at once: counting records, learning from leases."""
SETTLE_S: Final = 6.5
"""After the last request: longer than spans wait for others (OTEL_BSP_SCHEDULE_DELAY: 5 s)."""
TOKENS: Final = 32
"""Of a stream."""
READY_S: Final = 300.0
"""A program starts thirty times slower under Valgrind."""
ANSWER_S: Final = 120.0
HEAD: Final = """\
POST /v1/chat/completions HTTP/1.1
Host: 127.0.0.1:{port}
Accept-Encoding: identity
Content-Length: {length}
Content-Type: application/json
Authorization: Bearer none

"""


@dataclass(frozen=True, slots=True)
class Cell:
    """A load. `clients`: connections that ask at the same time; `slots`: of each engine."""

    name: str
    stream: bool = False
    pools: int = 1
    traced: bool = False
    body_bytes: int = 2000
    clients: int = 1
    slots: int = SLOTS


CELLS: Final = (
    Cell("json"),
    Cell("stream", stream=True),
    Cell("json, traced", traced=True),
    Cell("stream, traced", stream=True, traced=True),
    Cell("json, five pools", pools=5),
    Cell("json, 220 KB", body_bytes=220_000),
    Cell("json, queue", clients=8, slots=2),
)


@dataclass(frozen=True, slots=True)
class Count:
    """Instructions per request. `idle`: those per second beside requests."""

    cell: str
    checkout: str
    instructions: float
    idle: float


def count(cell: Cell, checkout: str, plan_for: Callable[[Setting], Plan], dir: Path) -> Count:
    """Starts engines and a sidecar, and counts.

    Raises:
        processes.TargetFailed: something cannot be started, leaves, or answers with an error.
        subprocess.SubprocessError: Valgrind failed.
    """
    engines, ports = _engines(cell, dir)
    children, port, out = [*engines], processes.free_port(), dir / f"counted-{checkout}.out"
    for old in dir.glob(f"{out.name}*"):
        old.unlink()
    try:
        plan = (traced(plan_for) if cell.traced else plan_for)(
            Setting(ports[0], port, ports[0], dir)
        )
        env = dict(plan.env)
        if cell.pools > 1:
            profile = plan.command[plan.command.index("--profile") + 1]
            env["ORCH_POOLS"] = json.dumps(
                [
                    {"name": f"p{n}", "url": f"http://127.0.0.1:{each}", "profile": profile}
                    for n, each in enumerate(ports)
                ]
            )
        words = ["valgrind", "--tool=callgrind", "--instr-atstart=no"]
        command = [*words, f"--callgrind-out-file={out}", *plan.command]
        child = processes.start(f"counted-{checkout}", command, dir, env)
        children.append(child)
        processes.wait_ready(child, f"http://127.0.0.1:{port}{plan.ready}", READY_S)
        clients = [_Client(port, cell) for _ in range(cell.clients)]
        _send(clients, WARM_UP)
        _control(child, "-i", "on")
        _send(clients, WARM_UP // 10)  # what Valgrind translates, and Python still specializes
        time.sleep(SETTLE_S)
        twice_s = _window(child, clients, 2 * REQUESTS, 0.0)
        once_s = _window(child, clients, REQUESTS, twice_s)
    finally:
        stop_all(children)
    twice, once = (_instructions(Path(f"{out}.{number}")) for number in (1, 2))
    # twice = 2 * requests + idle * twice_s, and once = requests + idle * once_s
    idle = (2 * once - twice) / (2 * once_s - twice_s)
    return Count(cell.name, checkout, (once - idle * once_s) / REQUESTS, idle)


def _window(child: processes.Child, clients: list[_Client], requests: int, least_s: float) -> float:
    """Has the instructions of so many requests counted and dumped, over at least that time. Returns
    how long it took."""
    _send(clients, len(clients))  # which opens the connections to the engines
    _control(child, "-z")
    began = time.monotonic()
    _send(clients, requests)
    time.sleep(max(SETTLE_S, began + least_s - time.monotonic()))
    took_s = time.monotonic() - began
    _control(child, "-d")
    return took_s


def _engines(cell: Cell, dir: Path) -> tuple[list[processes.Child], list[int]]:
    ports = [processes.free_port() for _ in range(cell.pools)]
    command = [str(build.program("upstream"))]
    engines = [
        processes.start(f"engine-{port}", [*command, str(port), str(cell.slots)], dir)
        for port in ports
    ]
    for engine, port in zip(engines, ports, strict=True):
        processes.wait_ready(engine, f"http://127.0.0.1:{port}/health", 10)
    return engines, ports


class _Client:
    """A connection, and the request that it sends: head and body at once, for how many reads they
    arrive in would be a matter of chance."""

    def __init__(self, port: int, cell: Cell) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), ANSWER_S)
        text = "Say something about foxes, rivers and the moon. " * (cell.body_bytes // 48 + 1)
        body = json.dumps(
            {
                "model": "tiny",
                "messages": [{"role": "user", "content": text[: cell.body_bytes]}],
                "temperature": 0.7,
                "max_tokens": TOKENS,
                "stream": cell.stream,
            }
        ).encode()
        head = HEAD.format(port=port, length=len(body)).replace("\n", "\r\n")
        self._request = head.encode() + body

    def ask(self) -> None:
        self._socket.sendall(self._request)
        with http.client.HTTPResponse(self._socket, method="POST") as answer:
            answer.begin()
            content = answer.read()
        if answer.status != 200:
            raise processes.TargetFailed(f"status {answer.status}: {content[:200]!r}")


def _send(clients: list[_Client], requests: int) -> None:
    """Sends so many requests, divided among the clients, and reads the answers."""
    failures: list[Exception] = []

    def run(client: _Client) -> None:
        try:
            for _ in range(requests // len(clients)):
                client.ask()
        except (OSError, http.client.HTTPException, processes.TargetFailed) as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(each,)) for each in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise processes.TargetFailed(str(failures[0]))


def _control(child: processes.Child, *words: str) -> None:
    command = ["callgrind_control", *words, str(child.process.pid)]
    subprocess.run(command, check=True, capture_output=True, timeout=ANSWER_S)


def _instructions(file: Path) -> int:
    """The instructions that Valgrind wrote to a file."""
    for line in file.read_text().splitlines():
        key, _, value = line.partition(":")
        if key in ("totals", "summary"):
            return int(value.split()[0])
    raise processes.TargetFailed(f"{file} contains no totals: Valgrind did not end in order")


def table(counts: list[Count]) -> str:
    lines = [
        "| cell | checkout | instructions per request | of the first | idle, per second |",
        "|---|---|---|---|---|",
    ]
    first: dict[str, float] = {}
    for each in counts:
        base = first.setdefault(each.cell, each.instructions)
        lines.append(
            f"| {each.cell} | {each.checkout} | {each.instructions:,.0f} | "
            f"{each.instructions / base:.4f} | {each.idle:,.0f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.benchmarks.instructions", description=__doc__)
    parser.add_argument("--cells", help="names, separated by semicolons; default: all")
    parser.add_argument("--baseline", type=Path, help="another checkout, counted first")
    parser.add_argument("--floor", action="store_true", help="a relay that decides nothing, too")
    parser.add_argument("--rounds", type=int, default=1, help="of each cell (1)")
    given = parser.parse_args()
    if shutil.which("valgrind") is None:
        sys.exit("valgrind is not installed: install the Debian package valgrind")
    names = {cell.name: cell for cell in CELLS}
    wanted = [*names] if given.cells is None else [each.strip() for each in given.cells.split(";")]
    if unknown := sorted(set(wanted) - names.keys()):
        parser.error(f"unknown: {', '.join(unknown)}; the cells are {'; '.join(names)}")
    checkouts: dict[str, Callable[[Setting], Plan]] = {"this": this_checkout}
    if given.baseline is not None:
        checkouts = {"baseline": baseline(given.baseline.resolve(strict=True)), **checkouts}
    dir, counts = build.cache(), []
    try:
        for cell in [names[name] for name in wanted] * given.rounds:
            counts += [count(cell, name, plan, dir) for name, plan in checkouts.items()]
            if given.floor and cell.pools == 1 and not cell.traced and (floor := PLANS[FLOOR]):
                counts.append(count(cell, FLOOR, floor, dir))
    except processes.TargetFailed as error:
        sys.exit(str(error))
    print(table(sorted(counts, key=lambda each: wanted.index(each.cell))))


if __name__ == "__main__":
    main()
