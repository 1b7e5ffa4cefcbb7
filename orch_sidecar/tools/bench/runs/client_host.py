"""Describes the client's machine from /proc and /sys, to judge whether it limited a result.

Nothing identifies the machine or its owner. Parsing is separate from reading the files.
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
    """The client's machine; None where unknown. The host name is left out on purpose.

    `cpus`: the CPUs that this process may use. `cpu_limit`: the limit of its control groups, in
    CPUs. `memory_bytes`: of the machine. `python`, `orch`, `uvloop`: versions.
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
    """Returns this machine's description. `root`: the folder with /proc and /sys."""
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
    """Parses the first model name in /proc/cpuinfo; None on Arm, which has none."""
    found = re.search(r"^model name[ \t]*:[ \t]*(\S.*?)[ \t]*$", cpuinfo, re.MULTILINE)
    return None if found is None else found[1]


def memory_bytes(meminfo: str) -> int | None:
    """Parses MemTotal in /proc/meminfo, whose kB are KiB."""
    found = re.search(r"^MemTotal:\s*(\d+) kB$", meminfo, re.MULTILINE)
    return None if found is None else int(found[1]) * 1024


def cgroup_folders(cgroup: str) -> Iterator[PurePosixPath]:
    """Yields the folders below /sys/fs/cgroup that may limit CPU time, innermost first.

    `cgroup`: the text of /proc/<pid>/cgroup; lines are `id:controllers:path` (cgroups(7)), with
    no controllers for version 2. In a container the path may be the host's: such folders do not
    exist, and the topmost one is the container's own.
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
    """Converts a quota to CPUs; None without a limit (`max`, in version 1 -1).

    `quota`: the quota and the period in microseconds, such as `150000 100000` (`cpu.max`).
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
    # Only Linux has CPU affinities.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _text(path: Path) -> str:
    """Returns the text of a kernel file, empty if it does not exist."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
