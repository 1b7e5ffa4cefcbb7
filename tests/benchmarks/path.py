"""Counts what one request passes on its way through the sidecar: functions, files, changes of file.

`python -m tests.benchmarks.path` runs a sidecar and a scripted engine in one process, warms them
up, and counts with a profile hook (`sys.setprofile`) every call of a function of `orch_sidecar`
from the client's first byte to the last byte of the answer: for a plain chat request, and for two
identical ones of which the second shares the first one's generation. Resuming a coroutine counts
as a call. Of several rounds the shortest counts: reports of the engine may fall into the others.
`--list` prints the calls.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import uvloop

import orch_sidecar
from orch_sidecar.app.sidecar import Sidecar
from orch_sidecar.config.settings import SidecarSettings
from tests.integration.client import Client, body_of
from tests.integration.running import Running
from tests.integration.scripted_engine import ScriptedEngine

ROOT: Final = Path(orch_sidecar.__file__).parent
CHAT: Final = "/v1/chat/completions"
ROUNDS: Final = 20


class Calls:
    """The calls within the package, in their order."""

    def __init__(self) -> None:
        self.codes: list[CodeType] = []

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(str(ROOT)):
            self.codes.append(frame.f_code)

    @property
    def figures(self) -> tuple[int, int, int]:
        """Distinct functions, distinct files, and how often a call is in another file."""
        files = [code.co_filename for code in self.codes]
        changes = sum(a != b for a, b in pairwise(files))
        return len(set(self.codes)), len(set(files)), changes


async def ask(*clients: Client, **more: Any) -> Calls:
    """Sends one request by each of these clients at once, and counts until all are answered."""
    calls = Calls()
    await asyncio.sleep(0.06)  # the engine's reports on the request before
    body = body_of(CHAT, **more)
    sys.setprofile(calls)
    try:
        for client in clients:
            client.send_request("POST", CHAT, body)
        for client in clients:
            response = await client.response()
            assert response.status == 200, response.body
    finally:
        sys.setprofile(None)
    return calls


async def measure() -> dict[str, Calls]:
    """The shortest way of each kind of request."""
    engine = ScriptedEngine()
    await engine.start()
    settings = SidecarSettings(engine_url=engine.url, profile="cloud", port=0)
    sidecar = Sidecar(settings)
    running = Running(sidecar, await sidecar.start())
    await running.ready()
    clients = [await running.client() for _ in range(2)]
    found: dict[str, Calls] = {}
    for _ in range(ROUNDS):
        for name, calls in {
            "a chat request": await ask(clients[0]),
            "two that share one generation": await ask(*clients, temperature=0),
        }.items():
            if name not in found or len(calls.codes) < len(found[name].codes):
                found[name] = calls
    for client in clients:
        await client.close()
    await sidecar.stop()
    await engine.stop()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true", help="print the calls, too")
    listed = parser.parse_args().list
    for name, calls in uvloop.run(measure()).items():
        functions, files, changes = calls.figures
        print(f"{name}: {functions} functions, {files} files, {changes} changes of file")
        for code in calls.codes if listed else ():
            file = Path(code.co_filename).relative_to(ROOT)
            print(f"    {file}:{code.co_firstlineno} {code.co_qualname}")


if __name__ == "__main__":
    main()
