"""Child processes: starts them, waits until they answer, reads CPU time and memory from /proc, and
stops them.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
STOP_S = 5.0
"""How long a process may take to leave after SIGTERM."""

FOREIGN_SETTINGS = ("OTEL_", "ORCH_", "VLLM_")
"""Environment of the caller that would change what is measured; children do not get it."""


class TargetFailed(Exception):
    """A process did not start, did not answer, or left; the message holds the end of its log."""


@dataclass(slots=True)
class Child:
    """A process that this run started, in a group of its own, and its log."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def alive(self) -> bool:
        return self.process.poll() is None

    def failed(self, what: str) -> TargetFailed:
        """Returns an error with what happened and the last output of the process."""
        text = self.log.read_text(errors="replace").strip()
        last = text.splitlines()[-1][-200:] if text else "no output"
        return TargetFailed(f"{what}: {last}")


def free_port() -> int:
    """A loopback TCP port that nothing listens on now."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


def start(name: str, command: list[str], log_dir: Path, env: dict[str, str] | None = None) -> Child:
    """Starts a command whose output goes to ``NAME.log``.

    Raises:
        TargetFailed: the program does not exist.
    """
    log = log_dir / f"{name}.log"
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(FOREIGN_SETTINGS)}
    try:
        with log.open("wb") as out:
            process = subprocess.Popen(
                command,
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=inherited | (env or {}),
                start_new_session=True,
            )
    except OSError as error:
        raise TargetFailed(f"cannot start: {error}") from error
    return Child(name, process, log)


def wait_ready(child: Child, url: str, limit_s: float) -> None:
    """Waits until GET ``url`` answers 200.

    Raises:
        TargetFailed: the process left, or the time is over.
    """
    end = time.monotonic() + limit_s
    problem = "no answer"
    while time.monotonic() < end:
        if not child.alive():
            raise child.failed(f"left with exit code {child.process.returncode}")
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except urllib.error.HTTPError as error:
            problem = f"status {error.code}"
        except OSError:
            pass
        time.sleep(0.1)
    raise child.failed(f"not ready after {limit_s:.0f} s ({problem})")


def stop(child: Child) -> None:
    """SIGTERM to the process; after a time SIGKILL to the group it was started in."""
    if child.alive():
        child.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            child.process.wait(STOP_S)
    with suppress(ProcessLookupError):
        os.killpg(child.process.pid, signal.SIGKILL)
    child.process.wait()


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the third (state) on; empty when the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def tree(pid: int) -> list[int]:
    """The process and its descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, todo = [], [pid]
    while todo:
        found.append(todo.pop())
        todo += children.get(found[-1], [])
    return found


def cpu_s(pid: int) -> float:
    """CPU seconds, user and system, of the process's tree, with children that have ended."""
    ticks = sum(sum(map(int, fields[11:15])) for p in tree(pid) if (fields := _stat(p)))
    return ticks / TICKS_PER_S


def user_and_system_s(pid: int) -> tuple[float, float]:
    """The same, user and system apart."""
    fields = [f for p in tree(pid) if (f := _stat(p))]
    user = sum(int(f[11]) + int(f[13]) for f in fields)
    system = sum(int(f[12]) + int(f[14]) for f in fields)
    return user / TICKS_PER_S, system / TICKS_PER_S


def machine_cpu_s() -> tuple[float, float]:
    """CPU seconds the whole machine has spent on anything but idling and waiting for disks, and
    those that it wanted while its host ran something else."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    user, nice, system, _idle, _iowait, irq, softirq, stolen = map(int, fields)
    return (user + nice + system + irq + softirq) / TICKS_PER_S, stolen / TICKS_PER_S


def rss_mb(pid: int) -> float:
    """Sum of VmRSS over the process's tree, in MB (10^6 bytes)."""
    total_kib = 0
    for p in tree(pid):
        try:
            lines = Path(f"/proc/{p}/status").read_text().splitlines()
        except OSError:
            continue
        total_kib += sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))
    return total_kib * 1024 / 1e6
