"""One call of a probe or a hook: HTTP and TCP from the node to the pod's address, exec inside.

A program that is bound to loopback is not reached from here, and neither would a kubelet reach it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from tests.k8s.runner.container import Run
from tests.k8s.runner.health import Result
from tests.k8s.runner.schema.container import Container, Exec, HttpGet, Probe
from tests.k8s.runner.schema.part import SpecError

AGENT = "kube-probe/1.34"


@dataclass(frozen=True, slots=True)
class Target:
    """What is probed: a running container in a pod with an address."""

    container: Container
    run: Run
    ip: str

    def port(self, port: int | str) -> int:
        """A probe's port; a name is one of this container's own ports.

        Raises:
            SpecError: the container has no port of that name.
        """
        if isinstance(port, int):
            return port
        for known in self.container.ports:
            if known.name == port:
                return known.container_port
        raise SpecError(f"{self.container.name} has no port named {port!r}")


async def call(probe: Probe, target: Target) -> Result:
    """Calls the probe once, within its timeoutSeconds."""
    limit_s = float(probe.timeout_seconds)
    if probe.exec is not None:
        return await execute(probe.exec, target, limit_s)
    if probe.http_get is not None:
        return await http_get(probe.http_get, target, limit_s)
    assert probe.tcp_socket is not None
    return await _connect(target.ip, target.port(probe.tcp_socket.port), limit_s)


async def execute(action: Exec, target: Target, limit_s: float) -> Result:
    done = await target.run.execute(action.command, limit_s)
    if done is None:
        return Result(False, f"exec {action.command} took longer than {limit_s} s")
    detail = f"exec {action.command} exit {done.exit_code}: {done.output.strip()[-300:]}"
    return Result(done.exit_code == 0, detail)


async def http_get(action: HttpGet, target: Target, limit_s: float) -> Result:
    """GET; 200 to 399 is a success."""
    port = target.port(action.port)
    where = f"GET http://{target.ip}:{port}{action.path}"
    headers = {"Host": f"{target.ip}:{port}", "User-Agent": AGENT, "Accept": "*/*"}
    headers |= {header.name: header.value for header in action.http_headers}
    lines = [f"GET {action.path} HTTP/1.1", *(f"{k}: {v}" for k, v in headers.items())]
    request = "\r\n".join([*lines, "Connection: close", "", ""]).encode()
    try:
        async with asyncio.timeout(limit_s):
            reader, writer = await asyncio.open_connection(target.ip, port)
            try:
                writer.write(request)
                status = await reader.readline()
                rest = await reader.read(2000)
            finally:
                writer.close()
    except TimeoutError:
        return Result(False, f"{where}: no answer within {limit_s} s")
    except OSError as wrong:
        return Result(False, f"{where}: {wrong}")
    words = status.split()
    if len(words) < 2 or not words[1].isdigit():
        return Result(False, f"{where}: not an HTTP answer: {status!r}")
    body = rest.partition(b"\r\n\r\n")[2].decode(errors="replace")[:300]
    return Result(200 <= int(words[1]) < 400, f"{where}: {words[1].decode()} {body}".rstrip())


async def _connect(ip: str, port: int, limit_s: float) -> Result:
    try:
        async with asyncio.timeout(limit_s):
            _, writer = await asyncio.open_connection(ip, port)
            writer.close()
    except (OSError, TimeoutError) as wrong:
        return Result(False, f"connect {ip}:{port}: {wrong!r}")
    return Result(True, f"connect {ip}:{port}")
