"""A sidecar that is cut off from its engine: its leases last as long as its requests.

The proxy forwards nothing while it is cut, and closes nothing: neither side learns of it. What was
sent meanwhile arrives afterwards, as TCP would have it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from tests.benchmarks.sidecars.load import Answer, Caller, Request, Window, closed_loop
from tests.benchmarks.sidecars.servers import SLOTS, Sidecar, state

STREAMS: Final = 3
STREAM_TOKENS: Final = 900
OTHERS_FOR_S: Final = 1.5
ENDS_WITHIN_S: Final = 1.0
_WAITS_S: Final = 60.0
_POLL_S: Final = 0.01


class Proxy:
    """Forwards connections to a port while `flows` is set."""

    def __init__(self, port: int) -> None:
        self.port = 0
        self.flows = asyncio.Event()
        self.flows.set()
        self._to = port
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        await self.flows.wait()
        if writer.is_closing():
            return
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._to)
        except OSError:
            writer.close()
            return
        self._writers.add(back)
        for task in (self._pump(reader, back), self._pump(there, writer)):
            running = asyncio.get_running_loop().create_task(task)
            self._tasks.add(running)
            running.add_done_callback(self._tasks.discard)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65_536):
                await self.flows.wait()
                writer.write(data)
                await writer.drain()
            await self.flows.wait()
        writer.close()


async def _until(what: str, holds: asyncio.Future[None], within_s: float) -> float:
    loop = asyncio.get_running_loop()
    began = loop.time()
    try:
        await asyncio.wait_for(holds, within_s)
    except TimeoutError:
        raise TimeoutError(f"{what}: not within {within_s:g} s") from None
    return loop.time() - began


async def _poll(port: int, **fields: int | str) -> None:
    """Returns when a server reports these values."""
    while True:
        with suppress(OSError):
            reported = await state(port)
            if all(reported[name] == value for name, value in fields.items()):
                return
        await asyncio.sleep(_POLL_S)


async def scene(
    proxy: Proxy, silent: Sidecar, others: list[Sidecar], engine_port: int
) -> tuple[list[str], dict[str, float]]:
    """Cuts one sidecar off while its streams run. Returns violations, and times in seconds."""
    problems: list[str] = []
    times: dict[str, float] = {}
    window = Window()
    callers = [Caller(window) for _ in range(STREAMS)]
    streams = [
        asyncio.ensure_future(each.ask(silent.port, Request(STREAM_TOKENS))) for each in callers
    ]
    await _until(
        "the streams run",
        asyncio.ensure_future(_poll(engine_port, leased=STREAMS, running=STREAMS)),
        _WAITS_S,
    )
    proxy.flows.clear()
    ports = [each.port for each in others]
    traffic = await closed_loop(ports, seconds=OTHERS_FOR_S, tokens=8, bulk=2 * SLOTS, warm_s=0.0)
    if not any(each.whole for each in traffic.answers):
        problems.append("the others were served nothing beside a silent sidecar")
    reported = await state(engine_port)
    if reported["running"] < STREAMS:
        problems.append(f"a stream ended too early to show anything: {reported['running']} run")
    elif reported["leased"] < STREAMS:
        problems.append(f"{reported['leased']} leases are left of {STREAMS} requests that run")
    await _until(
        "the silent sidecar's requests end",
        asyncio.ensure_future(_poll(engine_port, running=0, waiting=0)),
        _WAITS_S,
    )
    times["leases end after their requests"] = await _until(
        "their leases end", asyncio.ensure_future(_poll(engine_port, leased=0, foreign=0)), _WAITS_S
    )
    if times["leases end after their requests"] > ENDS_WITHIN_S:
        problems.append("the leases of a silent sidecar outlived their requests")
    proxy.flows.set()
    times["the sidecar is back"] = await _until(
        "the silent sidecar is ready and holds nothing",
        asyncio.ensure_future(_poll(silent.port, state="ready", leased=0, foreign=0)),
        _WAITS_S,
    )
    answers: list[Answer] = list(await asyncio.gather(*streams))
    times["of its streams were delivered whole"] = sum(each.whole for each in answers)
    again = await callers[0].ask(silent.port, Request(4))
    if not again.whole:
        problems.append(f"the sidecar that is back does not serve: {again.status} {again.code}")
    for each in callers:
        each.close()
    if (peak := (await state(engine_port))["peak"]) > SLOTS:
        problems.append(f"the engine had {peak} sequences in {SLOTS} slots")
    return problems, times
