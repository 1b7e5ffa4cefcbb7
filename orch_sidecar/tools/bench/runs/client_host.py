"""The machine that a load comes from, as it says itself: nobody types it by hand.

It reads what Linux tells under /proc and /sys, and nothing that names the machine or its owner.
What each file says is pure and apart from the reading. A figure of a client that had no CPU left
is one of the client, and this is what to look at then.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePosixPath


@dataclass(frozen=True, slots=True)
class Host:
    """A client's machine; None where unknown. The host's name is left out on purpose.

    `cpus`: that this process may run on. `cpu_limit`: of its control groups, in CPUs; None
    without one. `memory_bytes`: of the machine. `python`, `orch`, `uvloop`: versions.
    """

    system: str | None
    kernel: str | None
    machine: str | None
    cpu_model: str | None
    cpus: int | None
    cpu_limit: float | None
    memory_bytes: int | None
    python: str
    orch: str | None
    uvloop: str | None


def host(root: Path = Path("/")) -> Host:
    """This machine, now. `root`: where /proc and /sys are."""
    return Host(
        system=platform.system() or None,
        kernel=platform.release() or None,
        machine=platform.machine() or None,
        cpu_model=cpu_model(_text(root / "proc/cpuinfo")),
        cpus=_cpus(),
        cpu_limit=_cpu_limit(root),
        memory_bytes=memory_bytes(_text(root / "proc/meminfo")),
        python=platform.python_version(),
        orch=_version("orch-sidecar"),
        uvloop=_version("uvloop"),
    )


def cpu_model(cpuinfo: str) -> str | None:
    """Of the first processor in the text of /proc/cpuinfo. Arm's has no such line: None."""
    found = re.search(r"^model name[ \t]*:[ \t]*(\S.*?)[ \t]*$", cpuinfo, re.MULTILINE)
    return None if found is None else found[1]


def memory_bytes(meminfo: str) -> int | None:
    """All of it, by the text of /proc/meminfo, which counts in KiB and calls them kB."""
    found = re.search(r"^MemTotal:\s*(\d+) kB$", meminfo, re.MULTILINE)
    return None if found is None else int(found[1]) * 1024


def cgroup_folders(cgroup: str) -> Iterator[PurePosixPath]:
    """The folders below /sys/fs/cgroup with limits on a process's CPU time, innermost first.

    `cgroup`: the text of its /proc/<pid>/cgroup; lines are `id:controllers:path` (cgroups(7)),
    with no controllers for version 2. A limit of any folder counts. In a container the path may
    be the host's: such folders are not there, and the uppermost is the container's own.
    """
    for line in cgroup.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        mount = PurePosixPath("cpu" if controllers else "")
        inner = mount / path.lstrip("/")
        yield inner
        yield from (above for above in inner.parents if above.is_relative_to(mount))


def cpus_of(quota: str) -> float | None:
    """How many CPUs a quota amounts to; None for no limit, or no quota.

    `quota`: microseconds in each period, and the period's: `150000 100000`, as `cpu.max` of
    version 2 has them. No limit is `max` there, and -1 in version 1.
    """
    found = re.fullmatch(r"(\d+) ([1-9]\d*)", quota.strip())
    return None if found is None else int(found[1]) / int(found[2])


def _cpu_limit(root: Path) -> float | None:
    limits = []
    for below in cgroup_folders(_text(root / "proc/self/cgroup")):
        folder = root / "sys/fs/cgroup" / below
        v1 = [_text(folder / name).strip() for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")]
        limits += [cpus_of(_text(folder / "cpu.max")), cpus_of(" ".join(v1))]
    return min((limit for limit in limits if limit is not None), default=None)


def _cpus() -> int | None:
    # Only Linux has it; elsewhere a process cannot be kept to some CPUs.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _text(path: Path) -> str:
    """Of a file that the kernel writes; empty where it has none, so that nothing is known."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
