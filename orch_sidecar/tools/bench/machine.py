"""Describes this machine from /proc and /sys, to judge whether it limited a result.

Nothing identifies the machine or its owner.
"""

from __future__ import annotations

import os
import platform
import re
from importlib.metadata import version
from pathlib import Path


def host(root: Path = Path("/")) -> dict[str, str | int | None]:
    """Returns this machine's description; None where unknown. Its name is left out on purpose.

    `cpus`: those that this process may use. `python`, `orch`, `uvloop`: versions.
    """
    return {
        "system": platform.system(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpu_model": cpu("model name", root),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_bytes": memory_bytes("MemTotal", root),
        "python": platform.python_version(),
        "orch": version("orch-sidecar"),
        "uvloop": version("uvloop"),
    }


def cpu(field: str, root: Path = Path("/")) -> str | None:
    """Returns a field of the first processor; None without it, as of the model's name on Arm.
    `field`: its name, or a pattern of several."""
    return _found(rf"^{field}[ \t]*:[ \t]*(\S.*?)[ \t]*$", root / "proc/cpuinfo")


def memory_bytes(name: str, root: Path = Path("/")) -> int | None:
    """Returns a size of /proc/meminfo, whose kB are KiB."""
    kibibytes = _found(rf"^{name}:\s*(\d+) kB$", root / "proc/meminfo")
    return None if kibibytes is None else int(kibibytes) * 1024


def last_level_cache(root: Path = Path("/")) -> int | None:
    """Returns the bytes of the first core's largest cache."""
    folders = (root / "sys/devices/system/cpu/cpu0/cache").glob("index*")
    sizes = (_found(r"^(\d+)K$", folder / "size") for folder in folders)
    return max((int(size) * 1024 for size in sizes if size is not None), default=None)


def _found(pattern: str, path: Path) -> str | None:
    """Returns the first match in a kernel file; None without one, or without the file."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    match = re.search(pattern, text, re.MULTILINE)
    return None if match is None else match[1]
