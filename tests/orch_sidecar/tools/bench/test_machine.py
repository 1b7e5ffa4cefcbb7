"""What is recorded of a client's machine."""

from __future__ import annotations

import json
import os
import platform
import socket
from importlib.metadata import version
from pathlib import Path

import pytest

from orch_sidecar.tools.bench.machine import cpu, host, last_level_cache, memory_bytes

CPUINFO = """\
processor	: 0
vendor_id	: GenuineIntel
model		: 143
model name	: Intel(R) Xeon(R) Platinum 8480+
cpu MHz		: 2000.000
flags		: fpu avx512_bf16

processor	: 1
model name	: Another one
"""

MEMINFO = """\
MemTotal:       24684092 kB
MemFree:        21043560 kB
"""


def root_with(tmp_path: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    return tmp_path


def test_first_processor_is_described(tmp_path: Path) -> None:
    root = root_with(tmp_path, {"proc/cpuinfo": CPUINFO})
    assert cpu("model name", root) == "Intel(R) Xeon(R) Platinum 8480+"
    assert cpu("(?:flags|Features)", root) == "fpu avx512_bf16"


@pytest.mark.parametrize(
    "text", ["", "processor\t: 0\nCPU implementer\t: 0x41\n", "model name\t:\nflags\t: fpu\n"]
)
def test_missing_cpu_model_is_unknown(tmp_path: Path, text: str) -> None:
    assert cpu("model name", root_with(tmp_path, {"proc/cpuinfo": text})) is None


def test_memory_is_in_bytes(tmp_path: Path) -> None:
    root = root_with(tmp_path, {"proc/meminfo": MEMINFO})
    assert memory_bytes("MemTotal", root) == 24684092 * 1024
    assert memory_bytes("MemAvailable", root) is None


def test_largest_cache_is_the_last_level(tmp_path: Path) -> None:
    folder = "sys/devices/system/cpu/cpu0/cache"
    sizes = {f"{folder}/index0/size": "48K\n", f"{folder}/index3/size": "107520K\n"}
    assert last_level_cache(root_with(tmp_path, sizes)) == 105 * 2**20
    assert last_level_cache(tmp_path / "none") is None


def test_host_is_read_from_proc_and_sys(tmp_path: Path) -> None:
    found = host(root_with(tmp_path, {"proc/cpuinfo": CPUINFO, "proc/meminfo": MEMINFO}))
    assert found["cpu_model"] == "Intel(R) Xeon(R) Platinum 8480+"
    assert found["memory_bytes"] == 24684092 * 1024
    assert found["cpus"] == len(os.sched_getaffinity(0))
    assert (found["system"], found["kernel"]) == (platform.system(), platform.release())
    assert (found["machine"], found["python"]) == (platform.machine(), platform.python_version())
    assert (found["orch"], found["uvloop"]) == (version("orch-sidecar"), version("uvloop"))
    unknown = host(tmp_path / "none")
    assert (unknown["cpu_model"], unknown["memory_bytes"]) == (None, None)


def test_this_machine_has_a_processor_and_memory_and_does_not_give_its_name() -> None:
    found = host()
    memory, cpus = found["memory_bytes"], found["cpus"]
    assert isinstance(memory, int)
    assert memory > 2**28
    assert isinstance(cpus, int)
    assert cpus >= 1
    document = json.loads(json.dumps(found))
    assert not {"host", "hostname", "node"} & set(document)
    assert socket.gethostname() not in document.values()
