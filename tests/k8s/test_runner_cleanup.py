"""Nothing of the harness is left on the machine, however a test or the test process ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.k8s.runner.cluster import Cluster
from tests.k8s.runner.image import Image
from tests.k8s.runner.network import PREFIX
from tests.k8s.runner.tiny import SHELL, deployment, processes, shell
from tests.k8s.runner.tools import ToolFailed

ROOT = Path(__file__).parents[2]
SOON_S = 15.0
SLEEP = f"sleep 4712.{os.getpid()}"  # a command line that nothing else has


def test_only_root_can_run_manifests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ToolFailed, match="needs root, this is uid 1000"), Cluster({}, tmp_path):
        pass


def links() -> set[str]:
    return {path.name for path in Path("/sys/class/net").iterdir()}


def own_links() -> set[str]:
    """Links of clusters of this process: others may come and go meanwhile."""
    return {name for name in links() if name.removeprefix(PREFIX).startswith(f"{os.getpid():x}")}


def test_nothing_is_left_of_a_cluster_that_a_test_leaves_by_an_error(tmp_path: Path) -> None:
    before, mounts = own_links(), Path("/proc/self/mountinfo").read_text(encoding="utf-8")
    pod = {"containers": [shell(f"trap '' TERM; {SLEEP}")]}

    def fails() -> None:
        with Cluster({SHELL: Image()}, tmp_path) as cluster:
            cluster.apply([deployment("rest", pod, replicas=2)])
            cluster.wait(lambda: processes(SLEEP) == 2, SOON_S)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert processes(SLEEP) == 0
    assert own_links() <= before
    assert Path("/proc/self/mountinfo").read_text(encoding="utf-8") == mounts
    assert list((tmp_path / "pods").iterdir()) == []


def test_killed_harness_takes_its_pods_along_and_the_next_one_its_bridge(tmp_path: Path) -> None:
    script = f"""
import pathlib, time
from tests.k8s.runner.cluster import Cluster
from tests.k8s.runner.image import Image
from tests.k8s.runner.tiny import SHELL, deployment, processes, shell
with Cluster({{SHELL: Image()}}, pathlib.Path({str(tmp_path)!r})) as cluster:
    cluster.apply([deployment("d", {{"containers": [shell({SLEEP!r} + "; true")]}})])
    cluster.wait(lambda: processes({SLEEP!r}) == 1, 20)
    print(cluster._held.network.bridge, flush=True)
    time.sleep(60)
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        bridge = other.stdout.readline().strip()
        assert bridge.startswith(PREFIX)
        assert processes(SLEEP) == 1
        other.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + SOON_S
    while processes(SLEEP) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert processes(SLEEP) == 0
    assert bridge in links()
    with Cluster({SHELL: Image()}, tmp_path / "next"):
        assert bridge not in links()
