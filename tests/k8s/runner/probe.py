"""One call of a probe or a hook: HTTP from the node to the pod's address, exec inside.

A program that is bound to loopback is not reached from here, and neither would a kubelet reach it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.k8s.runner.container import Run


@dataclass(frozen=True, slots=True)
class Target:
    """A running container in a pod with an address."""

    container: Mapping[str, Any]
    run: Run
    ip: str


@dataclass(frozen=True, slots=True)
class Result:
    """What one call came to."""

    ok: bool
    detail: str


async def call(probe: Mapping[str, Any], target: Target) -> Result:
    """Calls a probe once, within its timeoutSeconds."""
    limit_s = float(probe.get("timeoutSeconds", 1))
    if "exec" in probe:
        return await execute(probe["exec"], target, limit_s)
    return await _http_get(probe["httpGet"], target, limit_s)


async def execute(action: Mapping[str, Any], target: Target, limit_s: float) -> Result:
    """Runs a command in the container."""
    done = await target.run.execute(action["command"], limit_s)
    if done is None:
        return Result(False, f"exec {action['command']} took longer than {limit_s} s")
    detail = f"exec {action['command']} exit {done.exit_code}: {done.output.strip()[-300:]}"
    return Result(done.exit_code == 0, detail)


async def _http_get(action: Mapping[str, Any], target: Target, limit_s: float) -> Result:
    """GET; 200 to 399 is a success. A port's name is one of this container's own."""
    ports = {port.get("name"): port["containerPort"] for port in target.container.get("ports", ())}
    port = ports.get(action["port"], action["port"])
    where = f"GET http://{target.ip}:{port}{action['path']}"
    head = f"GET {action['path']} HTTP/1.1\r\nHost: {target.ip}:{port}\r\nConnection: close\r\n\r\n"
    try:
        async with asyncio.timeout(limit_s):
            reader, writer = await asyncio.open_connection(target.ip, port)
            try:
                writer.write(head.encode())
                status = await reader.readline()
                rest = await reader.read(2000)
            finally:
                writer.close()
    except (OSError, TimeoutError) as wrong:
        return Result(False, f"{where}: {wrong!r}")
    words = status.split()
    code = int(words[1]) if len(words) > 1 and words[1].isdigit() else 0
    body = rest.partition(b"\r\n\r\n")[2].decode(errors="replace")[:300]
    return Result(200 <= code < 400, f"{where}: {code} {body}".rstrip())
