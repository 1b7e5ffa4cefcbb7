"""What is recorded of a client's machine."""

from __future__ import annotations

import json
import os
import platform
import socket
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_sidecar.tools.bench.runs.client_host import (
    cgroup_folders,
    cpu_model,
    cpus_of,
    host,
    memory_bytes,
)

CPUINFO = """\
processor	: 0
vendor_id	: GenuineIntel
model		: 143
model name	: Intel(R) Xeon(R) Platinum 8480+
cpu MHz		: 2000.000

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


def test_model_is_that_of_the_first_processor() -> None:
    assert cpu_model(CPUINFO) == "Intel(R) Xeon(R) Platinum 8480+"


@pytest.mark.parametrize(
    "text", ["", "processor\t: 0\nCPU implementer\t: 0x41\n", "model name\t:\nflags\t: fpu\n"]
)
def test_missing_cpu_model_is_unknown(text: str) -> None:
    assert cpu_model(text) is None


def test_memory_is_in_bytes() -> None:
    assert memory_bytes(MEMINFO) == 24684092 * 1024
    assert memory_bytes("MemFree: 1 kB\n") is None
    assert memory_bytes("") is None


@pytest.mark.parametrize(
    ("cgroup", "folders"),
    [
        ("0::/\n", ["."]),
        ("0::/user.slice/run.scope\n", ["user.slice/run.scope", "user.slice", "."]),
        ("4:cpu,cpuacct:/docker/f00\n", ["cpu/docker/f00", "cpu/docker", "cpu"]),
        ("3:cpuset:/a\n2:cpuacct:/b\n1:cpu:/\n0::/\n", ["cpu", "."]),
        ("9:name=systemd:/a:b\n", []),
        ("", []),
    ],
)
def test_limits_stand_in_the_folders_of_a_group_and_of_those_above(
    cgroup: str, folders: list[str]
) -> None:
    assert [str(folder) for folder in cgroup_folders(cgroup)] == folders


@pytest.mark.parametrize(
    ("quota", "cpus"),
    [
        ("200000 100000\n", 2.0),
        ("50000 100000", 0.5),
        ("max 100000", None),
        ("-1 100000", None),
        ("", None),
        ("100000", None),
        ("100000 0", None),
    ],
)
def test_quota_is_so_many_cpus(quota: str, cpus: float | None) -> None:
    assert cpus_of(quota) == cpus


@given(st.text())
def test_what_no_kernel_writes_is_unknown_and_no_error(text: str) -> None:
    assert cpu_model(text.replace("model name", "")) is None
    assert memory_bytes(text.replace("MemTotal", "")) is None
    list(cgroup_folders(text))


def test_host_is_read_from_proc_and_sys(tmp_path: Path) -> None:
    root = root_with(
        tmp_path,
        {
            "proc/cpuinfo": CPUINFO,
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "0::/pod/container\n",
            "sys/fs/cgroup/pod/container/cpu.max": "max 100000\n",
            "sys/fs/cgroup/pod/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/cpu.max": "400000 100000\n",
        },
    )
    found = host(root)
    assert found.cpu_model == "Intel(R) Xeon(R) Platinum 8480+"
    assert found.memory_bytes == 24684092 * 1024
    assert found.cpu_limit == 1.5
    assert found.cpus == len(os.sched_getaffinity(0))
    assert (found.system, found.kernel) == (platform.system(), platform.release())
    assert (found.machine, found.python) == (platform.machine(), platform.python_version())
    assert (found.orch, found.uvloop) == (version("orch-sidecar"), version("uvloop"))


def test_limit_of_version_one_counts_where_the_hosts_folders_are_not_there(tmp_path: Path) -> None:
    root = root_with(
        tmp_path,
        {
            "proc/self/cgroup": "5:cpu,cpuacct:/docker/f00\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "250000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        },
    )
    assert host(root).cpu_limit == 2.5


def test_machine_without_proc_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("system", "release", "machine"):
        monkeypatch.setattr(platform, name, str)
    found = host(tmp_path)
    assert (found.system, found.kernel, found.machine) == (None, None, None)
    assert (found.cpu_model, found.memory_bytes, found.cpu_limit) == (None, None, None)


def test_without_cpu_affinity_all_cpus_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    assert host().cpus == os.cpu_count()


def test_package_that_is_not_installed_has_no_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    found = host()
    assert (found.orch, found.uvloop) == (None, None)


def test_this_machine_has_a_processor_and_memory_and_does_not_give_its_name() -> None:
    found = host()
    assert found.memory_bytes is not None
    assert found.memory_bytes > 2**28
    assert found.cpus is not None
    assert found.cpus >= 1
    document = json.loads(json.dumps(asdict(found)))
    assert not {"host", "hostname", "node"} & set(document)
    assert socket.gethostname() not in document.values()
