"""What is applied in addition: monitoring, autoscaling, a way in from outside.

PodMonitor, ServiceMonitor, Gateway and HTTPRoute have no schema here: their shape is what these
tests ask of them, written from their documentation.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

import pytest
import yaml

from orch_sidecar.api.endpoints import ENDPOINTS
from tests.k8s.objects import (
    DEFAULT,
    K8S,
    ROOT,
    named,
    of_kind,
    pod_labels,
    ports_of,
    selects,
)

# What a counter, a histogram and an info have behind their name.
_SUFFIXES: Final = ("_total", "_bucket", "_sum", "_count", "_info")


def known_metrics() -> set[str]:
    """Names of metrics in the sidecar's sources, without suffixes."""
    text = "\n".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "orch_sidecar").rglob("*.py")
    )
    return set(re.findall(r'"((?:orch|gen_ai)_[a-z_]+)"', text))


def metrics_in(expression: str) -> set[str]:
    """The metrics that a PromQL expression names, without suffixes."""
    found = re.findall(r"\b((?:orch|gen_ai)_[a-z_]+)(?=[{ )])", expression)
    return {re.sub(f"({'|'.join(_SUFFIXES)})$", "", name) for name in found}


@pytest.mark.parametrize(
    ("kind", "name", "group", "endpoints", "paths"),
    [
        (
            "PodMonitor",
            "orch-pools",
            "pods",
            "podMetricsEndpoints",
            ["/metrics", "/metrics/engine"],
        ),
        ("ServiceMonitor", "orch-entry", "services", "endpoints", ["/metrics"]),
    ],
)
def test_monitor_finds_pods_and_asks_for_pages_that_there_are(
    kind: str, name: str, group: str, endpoints: str, paths: list[str]
) -> None:
    monitor = named("monitoring", kind, name).body
    assert monitor["apiVersion"] == "monitoring.coreos.com/v1"
    assert {"selector", endpoints} <= set(monitor["spec"])
    assert [each["path"] for each in monitor["spec"][endpoints]] == paths
    assert set(paths) <= set(ENDPOINTS)
    selector = monitor["spec"]["selector"]
    if group == "pods":
        chosen = [
            one for one in of_kind(DEFAULT, "Deployment") if selects(selector, pod_labels(one))
        ]
        assert {one.name for one in chosen} == {"orch-home", "orch-cloud"}
        ports = [set(ports_of(one)) for one in chosen]
    else:
        found = [
            one
            for one in of_kind(DEFAULT, "Service")
            if selects(selector, one.body["metadata"]["labels"])
        ]
        assert [one.name for one in found] == ["orch"]
        ports = [{port["name"] for port in one.body["spec"]["ports"]} for one in found]
    for each in monitor["spec"][endpoints]:
        assert set(each) == {"port", "path", "interval"}
        assert all(each["port"] in names for names in ports)


@pytest.mark.parametrize(
    ("kind", "name"), [("PodMonitor", "orch-pools"), ("ServiceMonitor", "orch-entry")]
)
def test_monitor_has_the_label_that_kube_prometheus_stack_selects_by(kind: str, name: str) -> None:
    labels = named("monitoring", kind, name).body["metadata"]["labels"]
    assert labels["release"] == "kube-prometheus-stack"


def test_dashboard_shows_metrics_that_the_sidecar_has() -> None:
    config = named("monitoring", "ConfigMap", "orch-dashboard")
    assert config.body["metadata"]["labels"]["grafana_dashboard"] == "1"
    dashboard: dict[str, Any] = json.loads(config.body["data"]["orch.json"])
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    shown = set().union(*(metrics_in(each) for each in expressions))
    assert {"orch_slots_leased", "orch_oversubscription_violations"} <= shown
    known = known_metrics()
    assert {name for name in shown if name not in known and f"{name}_total" not in known} == set()
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_dashboard_asks_for_jobs_that_the_monitors_make() -> None:
    text = named("monitoring", "ConfigMap", "orch-dashboard").body["data"]["orch.json"]
    pods = named("monitoring", "PodMonitor", "orch-pools")
    service = named(DEFAULT, "Service", "orch")
    made = {f"{pods.body['metadata']['namespace']}/{pods.name}", service.name}
    assert set(re.findall(r'job=\\"([^"\\]+)\\"', text)) == made


def test_autoscaler_scales_cloud_by_the_metric_that_the_rule_makes() -> None:
    scaler = named("autoscaling", "HorizontalPodAutoscaler", "orch-cloud").body["spec"]
    target = scaler["scaleTargetRef"]
    assert named(DEFAULT, target["kind"], target["name"]).body["apiVersion"] == target["apiVersion"]
    text = named("autoscaling", "ConfigMap", "orch-adapter-rule").body["data"]["config.yaml"]
    [rule] = yaml.safe_load(text)["rules"]
    [metric] = scaler["metrics"]
    assert metric["type"] == "Object"
    scaled = metric["object"]
    assert scaled["metric"]["name"] == rule["name"]["as"]
    described = scaled["describedObject"]
    assert named(DEFAULT, described["kind"], described["name"]).body["apiVersion"] == "v1"
    assert metrics_in(rule["metricsQuery"]) == {"orch_demand_ratio"}
    assert scaler["minReplicas"] >= 1
    assert scaled["target"] == {"type": "Value", "value": "700m"}


def test_autoscaler_counts_the_pools_that_the_entry_has_of_cloud() -> None:
    text = named("autoscaling", "ConfigMap", "orch-adapter-rule").body["data"]["config.yaml"]
    [rule] = yaml.safe_load(text)["rules"]
    [pattern] = re.findall(r'pool=~"([^"]+)"', rule["metricsQuery"])
    settings = yaml.safe_load(
        named(DEFAULT, "ConfigMap", "orch-entry").body["data"]["sidecar.yaml"]
    )
    headless = [pool["name"] for pool in settings["pools"] if pool.get("headless")]
    assert [name for name in headless if re.fullmatch(pattern, f"{name}-1")] == ["cloud"]


def test_way_in_leads_to_the_entry_alone() -> None:
    service = named(DEFAULT, "Service", "orch")
    ports = {port["name"]: port["port"] for port in service.body["spec"]["ports"]}
    route = named("gateway", "HTTPRoute", "orch").body
    gateway = named("gateway", "Gateway", "orch").body
    assert route["apiVersion"] == gateway["apiVersion"] == "gateway.networking.k8s.io/v1"
    assert [each["name"] for each in route["spec"]["parentRefs"]] == [gateway["metadata"]["name"]]
    [listener] = gateway["spec"]["listeners"]
    assert {"name", "protocol", "port"} <= set(listener)
    assert route["spec"]["hostnames"] == [listener["hostname"]]
    [rule] = route["spec"]["rules"]
    assert rule["backendRefs"] == [{"name": service.name, "port": ports["http"]}]
    assert rule["timeouts"] == {"request": "0s", "backendRequest": "0s"}, "streams are long"
    [match] = rule["matches"]
    ingress = yaml.safe_load((K8S / "overlays" / "gateway" / "ingress.yaml").read_text())
    [host] = ingress["spec"]["rules"]
    [path] = host["http"]["paths"]
    assert path["backend"] == {"service": {"name": service.name, "port": {"name": "http"}}}
    assert match["path"]["value"] == path["path"] == "/v1", "pages for operators stay inside"
