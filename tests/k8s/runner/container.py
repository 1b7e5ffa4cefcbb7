"""One run of one container: started, signalled, entered, waited for.

It does not know probes, restarts or the order of anything.
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.k8s.runner.image import SYSTEM_PATH
from tests.k8s.runner.sandbox import Sandbox
from tests.k8s.runner.script import Process, Root, script
from tests.k8s.runner.tools import LIMIT_S, tool

# The parent of process 1, in the sandbox's PID namespace; it passes on how its child ended. (With
# unshare --fork of util-linux 2.38 a killed child looks like exit code 1, with a line in the log.)
_PARENT = 'exec 3<&0; sh -c "$0" <&3 3<&- & exec 3<&- 2> /dev/null; wait "$!"'


class NotStarted(RuntimeError):
    """The root of a container could not be made; it is tried again."""


@dataclass(frozen=True, slots=True)
class Executed:
    """The result of a command in a container; `output` has standard output and error together."""

    exit_code: int
    output: str


class Run:
    """A container's process 1 and everything it started, in a PID namespace of its own."""

    def __init__(self, sandbox: Sandbox, process: Process) -> None:
        self._sandbox, self._process = sandbox, process
        self._outer: asyncio.subprocess.Process | None = None
        self._pid, self._pidfd = 0, -1
        self._waiting: asyncio.Task[int] | None = None

    async def start(self, root: Root, log: Path) -> None:
        """Makes the container's root and starts its command; returns when the command is next.

        Raises:
            NotStarted: the root could not be made; the log has the reason.
        """
        reading, writing = os.pipe()
        try:
            with log.open("ab") as out:
                self._outer = await asyncio.create_subprocess_exec(
                    *self._sandbox.enter(tool("unshare"), "--mount", "--pid"),
                    *(tool("sh"), "-c", _PARENT, script(root, self._process)),
                    stdin=writing,
                    stdout=out,
                    stderr=out,
                    env={"PATH": SYSTEM_PATH},
                )
        finally:
            os.close(writing)
        self._waiting = asyncio.create_task(self._wait())
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        pipe, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(reading, "rb", 0)
        )
        try:
            async with asyncio.timeout(LIMIT_S):
                line = await reader.readline()
                if line:
                    self._hold(int(line))
                ready = await reader.readline()
        except TimeoutError as late:
            await self.kill()
            raise NotStarted(f"its root was not made within {LIMIT_S} s") from late
        finally:
            pipe.close()
        if ready != b"ready\n":
            code = await self.ended()
            raise NotStarted(f"its root could not be made (exit {code}): {_tail(log)}")

    async def ended(self) -> int:
        """Waits for the end of process 1: its exit code, 128 + N after signal N."""
        assert self._waiting is not None
        return await asyncio.shield(self._waiting)

    @property
    def alive(self) -> bool:
        return self._waiting is not None and not self._waiting.done()

    def terminate(self) -> None:
        """TERM to process 1 only; the kernel drops it unless the process handles it."""
        self._send(signal.SIGTERM)

    async def kill(self) -> None:
        """KILL to process 1, with which every process of the container ends; waits for that."""
        self._send(signal.SIGKILL)
        if self._outer is not None and self._pidfd < 0:
            with suppress(ProcessLookupError):
                self._outer.kill()
        await self.ended()

    async def execute(self, command: list[str], limit_s: float) -> Executed | None:
        """Runs `command` as the container's user in its namespaces; None when it took too long."""
        inner = Process(
            tuple(command),
            self._process.environment,
            self._process.working_dir,
            self._process.rights,
        )
        argv = inner.argv()
        # The command ends with nsenter, which may have to be killed.
        argv[1:1] = ["--pdeathsig", "KILL"]
        spaces = ("--mount", "--net", "--uts", "--ipc", "--pid")
        process = await asyncio.create_subprocess_exec(
            *(tool("nsenter"), "--target", str(self._pid), *spaces, *argv),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            async with asyncio.timeout(limit_s):
                output, _ = await process.communicate()
        except TimeoutError:
            return None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode is not None
        return Executed(_code(process.returncode), output.decode(errors="replace"))

    def _hold(self, pid: int) -> None:
        """Takes a descriptor of process 1 while its number is certainly its own."""
        self._pid = pid
        with suppress(ProcessLookupError):  # a command that is over already needs no signal
            pidfd = os.pidfd_open(pid)
            if self.alive:
                self._pidfd = pidfd
            else:
                os.close(pidfd)

    def _send(self, number: signal.Signals) -> None:
        if self._pidfd >= 0 and self.alive:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    async def _wait(self) -> int:
        assert self._outer is not None
        code = await self._outer.wait()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
        return _code(code)


def _code(returncode: int) -> int:
    return returncode if returncode >= 0 else 128 - returncode


def _tail(log: Path, size: int = 600) -> str:
    return log.read_bytes()[-size:].decode(errors="replace").strip()
