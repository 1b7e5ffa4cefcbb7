"""Calls of the machine's own programs: ip, mount, unshare, nsenter. Bounded, errors with output."""

from __future__ import annotations

import asyncio
import shutil

LIMIT_S = 20.0  # none of them takes more than milliseconds unless the machine is in trouble


class ToolFailed(RuntimeError):
    """A program of the machine did not do what was asked; the message has its words."""


def tool(name: str) -> str:
    """The full path of a program of the host.

    Raises:
        ToolFailed: the machine does not have it.
    """
    found = shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin")
    if found is None:
        raise ToolFailed(f"no {name!r} on this machine: util-linux and iproute2 are needed")
    return found


async def call(*argv: str, stdin: str = "") -> str:
    """Runs one program and returns its standard output.

    Raises:
        ToolFailed: it is missing, ends with an error, or takes longer than LIMIT_S.
    """
    process = await asyncio.create_subprocess_exec(
        tool(argv[0]),
        *argv[1:],
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(LIMIT_S):
            output, _ = await process.communicate(stdin.encode())
    except TimeoutError as late:
        process.kill()
        await process.wait()
        raise ToolFailed(f"{' '.join(argv)} took longer than {LIMIT_S} s") from late
    text = output.decode(errors="replace")
    if process.returncode != 0:
        raise ToolFailed(f"{' '.join(argv)} {stdin!r} ended with {process.returncode}: {text}")
    return text
