"""Traces one POST through the real pipeline, in front of scripted engines.

`python -m tests.integration.request_way [WAY ...] [--print] [--json]`: the functions of this
package that a request enters, of how many files, and how often the next one is in another file.
With --print each of them in order, `>>` where the file changes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple
from unittest.mock import patch

import uvloop

import orch_sidecar
from orch_sidecar.app import sidecar as app
from orch_sidecar.config.settings import SidecarSettings
from tests.integration.running import eventually
from tests.integration.scripted_engine import ScriptedEngine

_PACKAGE: Final = Path(orch_sidecar.__file__).parent
# What runs beside requests, with all that it calls.
BACKGROUND: Final = frozenset(
    {
        "app/reloader.py",
        "app/sidecar.py",
        "observability/request_log.py",
        "pools/discovery.py",
        "pools/engine_calls.py",
        "pools/engine_watcher.py",
        "wire/event_stream.py",
        "pools/stream_timeout.py",
    }
)


class Call(NamedTuple):
    """A function that was entered: its file in the package, its name, and its first line."""

    file: str
    function: str
    line: int


@dataclass(frozen=True, slots=True)
class Way:
    """The calls of one request, in order."""

    calls: tuple[Call, ...]

    @property
    def counts(self) -> tuple[int, int, int]:
        """Functions, files, changes of the file."""
        calls = self.calls
        changes = sum(a.file != b.file for a, b in pairwise(calls))
        return len(set(calls)), len({each.file for each in calls}), changes


class _Recorder:
    """Follows `sys.setprofile`. A coroutine that goes on is entered again."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._background = 0  # functions below the first one that runs in the background

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "return":
            self._background -= self._background > 0
        elif event == "call":
            code = frame.f_code
            path = Path(code.co_filename)
            ours = path.is_relative_to(_PACKAGE)
            file = path.relative_to(_PACKAGE).as_posix() if ours else ""
            if self._background or file in BACKGROUND:
                self._background += 1
            elif ours:
                self.calls.append(Call(file, code.co_qualname, code.co_firstlineno))


def _body(way: str) -> bytes:
    """As clients write it: without spaces."""
    fields = {
        "messages": [{"role": "user", "content": "hi"}], "model": "tiny", "max_tokens": 3,
        "stream": way != "json", "temperature": 0 if way == "shared" else 1,
    }  # fmt: skip
    return json.dumps(fields, separators=(",", ":")).encode()


async def trace(way: str) -> Way:
    """`way`: `plain` (a stream), `json`, `pools` (a stream, with two pools), `shared` (it could be
    coalesced, and is alone)."""
    engines = [ScriptedEngine(slots=4) for _ in range(2 if way == "pools" else 1)]
    for engine in engines:
        await engine.start()
    pools = [
        {"name": f"pool-{number}", "url": engine.url, "profile": engine.profile}
        for number, engine in enumerate(engines)
    ]
    first = engines[0]
    where: dict[str, Any] = {"engine_url": first.url, "profile": first.profile}
    if way == "pools":
        where = {"pools": pools}
    with patch.object(app, "gc"):
        sidecar = app.Sidecar(SidecarSettings(_env_file=None, port=0, admin_port=0, **where))
        port = await sidecar.start()
    await eventually(lambda: all(pool.watcher.ready for pool in sidecar.pools.all))
    body = _body(way)
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)

    async def post() -> None:
        writer.write(head.encode() + body)
        answer = b""
        while not answer.endswith(b"}" if way == "json" else b"0\r\n\r\n"):
            part = await reader.read(65536)
            assert part, answer
            answer += part

    recorder = _Recorder()
    for _ in range(3):
        await post()
        await asyncio.sleep(0.15)
    sys.setprofile(recorder)
    await post()
    await asyncio.sleep(0.1)
    sys.setprofile(None)
    writer.close()
    await sidecar.stop()
    for engine in engines:
        await engine.stop()
    names = [each.function for each in recorder.calls]
    begin = names.index("ClientConnection.data_received")
    end = len(names) - names[::-1].index("ClientConnection._serve_next")  # for the next request
    return Way(tuple(recorder.calls[begin:end]))


WAYS: Final = ("plain", "json", "pools", "shared")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ways", nargs="*", metavar="WAY", help=", ".join(WAYS))
    parser.add_argument("--print", action="store_true", dest="prints")
    parser.add_argument("--json", action="store_true", help="the counts, and all functions")
    options = parser.parse_args()
    for name in [name for name in os.environ if name.startswith(("ORCH_", "OTEL_"))]:
        del os.environ[name]
    for name in options.ways or WAYS:
        way = uvloop.run(trace(name))
        if options.json:
            print(json.dumps([name, *way.counts, sorted(set(way.calls))]))
            continue
        before = ""
        for call in way.calls if options.prints else ():
            print("  " if call.file == before else ">>", f"{call.file}:{call.line} {call.function}")
            before = call.file
        print("{}: functions {}, files {}, changes of file {}".format(name, *way.counts))


if __name__ == "__main__":
    main()
