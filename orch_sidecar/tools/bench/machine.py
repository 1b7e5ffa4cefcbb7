"""Describes this machine from /proc and /sys, to judge whether it limited a result.

Nothing identifies the machine or its owner.
"""

from __future__ import annotations

import os
import platform
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePosixPath


def host(root: Path = Path("/")) -> dict[str, str | int | float | None]:
    """Returns this machine's description; None where unknown. The host name is left out on purpose.

    `cpus`: the CPUs that this process may use. `cpu_limit`: the limit of its control groups, in
    CPUs. `memory_bytes`: of the machine. `python`, `orch`, `uvloop`: versions. `root`: the folder
    with /proc and /sys.
    """
    return {
        "system": platform.system() or None,
        "kernel": platform.release() or None,
        "machine": platform.machine() or None,
        "cpu_model": cpu_model(root),
        "cpus": _cpus(),
        "cpu_limit": _cpu_limit(root),
        "memory_bytes": memory_bytes("MemTotal", root),
        "python": platform.python_version(),
        "orch": _version("orch-sidecar"),
        "uvloop": _version("uvloop"),
    }


def cpu_model(root: Path = Path("/")) -> str | None:
    """Returns the name of the first processor; None on Arm, which has none."""
    return _found(r"^model name[ \t]*:[ \t]*(\S.*?)[ \t]*$", root / "proc/cpuinfo")


def cpu_flags(root: Path = Path("/")) -> set[str]:
    """Returns the features of the first processor."""
    flags = _found(r"^(?:flags|Features)[ \t]*:(.*)$", root / "proc/cpuinfo")
    return set((flags or "").split())


def memory_bytes(name: str, root: Path = Path("/")) -> int | None:
    """Returns a size of /proc/meminfo, whose kB are KiB."""
    kibibytes = _found(rf"^{name}:\s*(\d+) kB$", root / "proc/meminfo")
    return None if kibibytes is None else int(kibibytes) * 1024


def last_level_cache(root: Path = Path("/")) -> int | None:
    """Returns the bytes of the first core's largest cache."""
    folders = (root / "sys/devices/system/cpu/cpu0/cache").glob("index*")
    sizes = (_found(r"^(\d+)K$", folder / "size") for folder in folders)
    return max((int(size) * 1024 for size in sizes if size is not None), default=None)


def _cpu_limit(root: Path) -> float | None:
    """Returns the lowest quota of the control groups of this process (version 2).

    In a container the path may be the host's: such folders do not exist, and the topmost one is
    the container's own.
    """
    inner = PurePosixPath(_found(r"^0::/(.*)$", root / "proc/self/cgroup") or "")
    limits = [
        int(quota) / int(period)
        for folder in (inner, *inner.parents)
        if (text := _found(r"^(\d+ [1-9]\d*)$", root / "sys/fs/cgroup" / folder / "cpu.max"))
        for quota, period in [text.split()]
    ]
    return min(limits, default=None)


def _cpus() -> int | None:
    # Only Linux has CPU affinities.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _found(pattern: str, path: Path) -> str | None:
    """Returns the first match in a kernel file; None without one, or without the file."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    match = re.search(pattern, text, re.MULTILINE)
    return None if match is None else match[1]
