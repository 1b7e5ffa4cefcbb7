"""Pods of the harness find and reach each other as in a cluster, and nothing else."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from tests.k8s.asking import said, started
from tests.k8s.runner.cluster import Cluster
from tests.k8s.runner.image import Image
from tests.k8s.runner.tiny import SHELL, server, service, shell


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster({SHELL: Image()}, tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


def get(address: str, path: str = "/") -> str:
    with urllib.request.urlopen(f"http://{address}{path}", timeout=5) as answer:
        text: str = answer.read().decode()
        return text


def test_pod_is_found_by_service_names_and_reached_over_its_service(cluster: Cluster) -> None:
    pods = {"containers": [server("$HOSTNAME")]}
    headless = service("pool", app="web", clusterIP="None")
    cluster.apply([service("web"), headless])
    with pytest.raises(urllib.error.URLError, match="Connection refused"):
        get(cluster.address("web"))
    first = started(cluster, "web", pods, replicas=2)
    names = {pod.name for pod in cluster.pods("web")}
    ips = {pod.ip for pod in cluster.pods("web")}

    assert {get(cluster.address("web")) for _ in range(4)} == names
    assert get(f"{first.ip}:8080") == first.name
    assert set(said(cluster, first, "getent ahostsv4 pool | cut -d' ' -f1").split()) == ips
    by_name = "import urllib.request as u; print(u.urlopen('http://web.default/').read().decode())"
    assert said(cluster, first, f'python3 -c "{by_name}"').strip() in names
    assert cluster.exec(first.name, "c", ["getent", "hosts", "nobody"]).exit_code == 2
    assert "default" not in said(cluster, first, "ip route")
    outside = cluster.exec(first.name, "c", ["ip", "route", "get", "192.0.2.1"])
    assert "unreachable" in outside.output


def test_program_on_loopback_is_reached_from_its_pod_only(cluster: Cluster) -> None:
    inner = server("inner", name="inner", port=9000, env=[{"name": "BIND", "value": "127.0.0.1"}])
    inner["readinessProbe"] = {
        "exec": {"command": ["sh", "-c", "python3 -c 'import socket as s; "
                             's.create_connection(("127.0.0.1", 9000))\'']},
        "periodSeconds": 1,
    }  # fmt: skip
    pod = started(cluster, "loop", {"containers": [inner, shell("exec sleep 99")]})
    with pytest.raises(urllib.error.URLError, match="Connection refused"):
        get(f"{pod.ip}:9000")
    code = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:9000').read().decode())"
    assert said(cluster, pod, f'python3 -c "{code}"') == "inner\n"
