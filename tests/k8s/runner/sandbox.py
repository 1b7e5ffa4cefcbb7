"""A pod's sandbox: the namespaces its containers share, held by one process.

The process is the first of a PID namespace that holds all containers' own PID namespaces, so its
end is the end of everything in the pod: processes, mounts, network. It ends by itself when its
standard input does, that is when the test process is gone, however it went.
"""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path

from tests.k8s.runner.tools import LIMIT_S, ToolFailed, call, tool

SHM_SIZE = "64m"  # what the container runtimes give a pod


class Sandbox:
    """`box` is a directory that exists on the host; inside, a tmpfs of the pod's own hides it."""

    def __init__(self, name: str, box: Path) -> None:
        self.name, self.box = name, box
        self.pid = 0
        self._holder: asyncio.subprocess.Process | None = None

    async def open(self) -> None:
        """Raises ToolFailed where namespaces or mounts cannot be made."""
        box = shlex.quote(str(self.box))
        lines = [
            "set -e",
            "mount --make-rprivate /",
            f"mount -t tmpfs -o mode=755 tmpfs {box}",
            f"mkdir {box}/layer {box}/shm {box}/memory {box}/writable",
            f"mount -t tmpfs -o nosuid,nodev,noexec,mode=1777,size={SHM_SIZE} shm {box}/shm",
            f"hostname {shlex.quote(self.name)}",
            "read -r pid _ < /proc/self/stat",
            'echo "$pid"',
            "exec cat > /dev/null",
        ]
        self._holder = await asyncio.create_subprocess_exec(
            *(tool("unshare"), "--mount", "--net", "--uts", "--ipc", "--pid", "--fork"),
            *("--kill-child", tool("sh"), "-c", "\n".join(lines)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert self._holder.stdout is not None
        assert self._holder.stderr is not None
        async with asyncio.timeout(LIMIT_S):
            line = await self._holder.stdout.readline()
            if not line:
                wrong = (await self._holder.stderr.read()).decode(errors="replace")
                raise ToolFailed(f"no sandbox for pod {self.name}: {wrong}")
        self.pid = int(line)

    async def close(self) -> None:
        """Ends whatever runs in the pod."""
        if self._holder is None:
            return
        if self._holder.returncode is None:
            self._holder.kill()
        # Reads the pipes to their end, so that their transports are closed with the process.
        await self._holder.communicate()

    def inside(self, path: str | Path) -> Path:
        """A path of the sandbox's mount namespace, as the test process can open it."""
        return Path(f"/proc/{self.pid}/root{path}")

    async def call(self, *argv: str) -> None:
        """Runs a program of the machine in the sandbox's mount namespace; raises ToolFailed."""
        await call("nsenter", "--target", str(self.pid), "--mount", *argv)

    def enter(self, *argv: str) -> list[str]:
        """The command line that runs `argv` in the sandbox's namespaces."""
        spaces = ("--mount", "--net", "--uts", "--ipc", "--pid")
        return [tool("nsenter"), "--target", str(self.pid), *spaces, *argv]
