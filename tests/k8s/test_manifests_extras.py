"""What is applied in addition: monitoring, autoscaling, a way in from outside, an endpoint picker.

Monitors, rules, Gateway, HTTPRoute and InferencePool have no schema here: their shape is what these
tests ask of them, written from their documentation.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from orch_sidecar.api.endpoints import ENDPOINTS
from tests.k8s.objects import (
    DEFAULT,
    GUIDE,
    SETS,
    Manifest,
    composed,
    mount_of,
    named,
    of_kind,
    pod_labels,
    pod_spec,
    ports_of,
    selects,
)


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
        assert set(each) - {"metricRelabelings"} == {"port", "path", "interval"}
        assert all(each["port"] in names for names in ports)


@pytest.mark.parametrize(
    ("kind", "name"),
    [("PodMonitor", "orch-pools"), ("ServiceMonitor", "orch-entry"), ("PrometheusRule", "orch")],
)
def test_monitor_has_the_label_that_kube_prometheus_stack_selects_by(kind: str, name: str) -> None:
    labels = named("monitoring", kind, name).body["metadata"]["labels"]
    assert labels["release"] == "kube-prometheus-stack"


def test_endpoint_pickers_metrics_are_scraped_of_engines_alone() -> None:
    """Prometheus would add up both: the sidecar has metrics of the names of vLLM's own."""
    own, engine = named("monitoring", "PodMonitor", "orch-pools").body["spec"][
        "podMetricsEndpoints"
    ]
    [dropped] = own["metricRelabelings"]
    assert re.fullmatch(dropped["regex"], "vllm:num_requests_waiting")
    assert not re.fullmatch(dropped["regex"], "orch_queue_depth")
    assert (dropped["sourceLabels"], dropped["action"]) == (["__name__"], "drop")
    assert "metricRelabelings" not in engine


def test_dashboard_begins_with_the_jobs_that_the_monitors_make() -> None:
    config = named("monitoring", "ConfigMap", "orch-dashboard")
    assert config.body["metadata"]["labels"]["grafana_dashboard"] == "1"
    variables = json.loads(config.body["data"]["orch.json"])["templating"]["list"]
    current = {each["name"]: each.get("current", {}).get("value") for each in variables}
    pods = named("monitoring", "PodMonitor", "orch-pools")
    assert current["engines"] == f"{pods.body['metadata']['namespace']}/{pods.name}"
    assert current["entry"] == named(DEFAULT, "Service", "orch").name


def test_autoscalers_scale_cloud_by_the_jobs_and_pools_that_there_are() -> None:
    """What they ask is in tests/integration/monitoring/test_autoscaling.py."""
    keda = named("autoscaling", "ScaledObject", "orch-cloud").body
    hpa = named("autoscaling-hpa", "HorizontalPodAutoscaler", "orch-cloud").body["spec"]
    assert keda["apiVersion"] == "keda.sh/v1alpha1"
    target = hpa["scaleTargetRef"]
    cloud = named(DEFAULT, target["kind"], target["name"]).body
    assert (cloud["apiVersion"], cloud["metadata"]["name"]) == (
        target["apiVersion"],
        keda["spec"]["scaleTargetRef"]["name"],
    )
    assert "replicas" not in cloud["spec"]
    [trigger] = keda["spec"]["triggers"]
    query = trigger["metadata"]["query"]
    pods = named("monitoring", "PodMonitor", "orch-pools")
    assert re.findall(r'job="([^"]+)"', query) == [named(DEFAULT, "Service", "orch").name]
    [job] = re.findall(r'job=~"([^"]+)"', query)
    assert re.fullmatch(job, f"orch/{pods.name}")
    [pattern] = re.findall(r'pool=~"([^"]+)"', query)
    settings = yaml.safe_load(
        named(DEFAULT, "ConfigMap", "orch-entry").body["data"]["sidecar.yaml"]
    )
    headless = [pool["name"] for pool in settings["pools"] if pool.get("headless")]
    assert [name for name in headless if re.fullmatch(pattern, f"{name}-1")] == ["cloud"]


@pytest.mark.parametrize(("folder", "namespace"), [("autoscaling", "orch"), ("own_keys", "team-a")])
def test_autoscaler_asks_for_the_demand_of_its_own_namespace(folder: str, namespace: str) -> None:
    [trigger] = named(folder, "ScaledObject", "orch-cloud").body["spec"]["triggers"]
    asked = trigger["metadata"]["query"]
    assert re.findall(r'namespace="([^"]*)"', asked) == [namespace, namespace]
    [usual] = named("autoscaling", "ScaledObject", "orch-cloud").body["spec"]["triggers"]
    assert asked == usual["metadata"]["query"].replace(
        'namespace="orch"', f'namespace="{namespace}"'
    )


def test_way_in_leads_to_the_entry_alone_and_over_tls(tmp_path: Path) -> None:
    service = named(DEFAULT, "Service", "orch")
    ports = {port["name"]: port["port"] for port in service.body["spec"]["ports"]}
    gateway = named("gateway", "Gateway", "orch").body
    listeners = {each["name"]: each for each in gateway["spec"]["listeners"]}
    routes = {each.name: each.body for each in of_kind("gateway", "HTTPRoute")}
    for name, listener in (("orch", "https"), ("orch-redirect", "http")):
        [parent] = routes[name]["spec"]["parentRefs"]
        assert parent == {"name": gateway["metadata"]["name"], "sectionName": listener}
        assert routes[name]["spec"]["hostnames"] == [listeners[listener]["hostname"]]
        assert routes[name]["apiVersion"] == gateway["apiVersion"] == "gateway.networking.k8s.io/v1"
    [redirect] = routes["orch-redirect"]["spec"]["rules"]
    assert set(redirect) == {"filters"}, "nothing is served without TLS"
    assert listeners["https"]["tls"]["certificateRefs"] == [{"kind": "Secret", "name": "orch-tls"}]
    [rule] = routes["orch"]["spec"]["rules"]
    assert rule["backendRefs"] == [{"name": service.name, "port": ports["http"]}]
    assert rule["timeouts"] == {"request": "0s", "backendRequest": "0s"}, "streams are long"
    [match] = rule["matches"]
    ingress = composed(tmp_path, ["base/parameters"], ["components/ingress"])["Ingress/orch"].body
    assert ingress["spec"]["tls"] == [{"hosts": ["orch.example.com"], "secretName": "orch-tls"}]
    [host] = ingress["spec"]["rules"]
    [path] = host["http"]["paths"]
    assert path["backend"] == {"service": {"name": service.name, "port": {"name": "http"}}}
    assert match["path"]["value"] == path["path"] == "/v1", "pages for operators stay inside"


@pytest.mark.parametrize("way", ["ingress", "gateway"])
def test_certificate_comes_of_cert_manager_unless_it_is_one_s_own(way: str, tmp_path: Path) -> None:
    for issuer, wanted in (("ours", {"ours"}), ("none", set())):
        parameters = {"TLS_ISSUER": issuer}
        found = composed(tmp_path, ["base/parameters"], [f"components/{way}"], parameters)
        annotations = [each.body["metadata"].get("annotations", {}) for each in found.values()]
        asked = {each.get("cert-manager.io/cluster-issuer") for each in annotations}
        assert asked - {None} == wanted


def test_entry_with_batches_has_their_files_and_the_database_of_a_secret(tmp_path: Path) -> None:
    """In an image of its own, for the code in ConfigMaps has no batches."""
    ways = ["components/images", "components/batches"]
    found = composed(tmp_path, ["installations/cpu"], ways)
    spec = pod_spec(found["Deployment/orch-entry"])
    [sidecar] = [each for each in spec["containers"] if each["name"] == "sidecar"]
    env = {each["name"]: each for each in sidecar["env"]}
    mount = mount_of(sidecar, env["ORCH_BATCHES"]["value"])
    assert mount is not None
    assert not mount.get("readOnly")
    [volume] = [each for each in spec["volumes"] if each["name"] == mount["name"]]
    claim = volume["persistentVolumeClaim"]["claimName"]
    # Each replica of the entry has it.
    body = found[f"PersistentVolumeClaim/{claim}"].body
    assert body["spec"]["accessModes"] == ["ReadWriteMany"]
    database = env["ORCH_BATCHES_DATABASE"]["valueFrom"]["secretKeyRef"]
    assert f"Secret `{database['name']}`" in GUIDE.read_text(encoding="utf-8")
    assert "entry" not in sidecar["image"]


EXTRA = "inference-pool"


def pool() -> dict[str, Any]:
    spec: dict[str, Any] = named(EXTRA, "InferencePool", "orch-cloud").body["spec"]
    return spec


def chosen(folder: str) -> list[Manifest]:
    """The Deployments whose pods the pool selects."""
    found = of_kind(folder, "Deployment")
    return [each for each in found if selects(pool()["selector"], pod_labels(each))]


@pytest.mark.parametrize("folder", sorted({*SETS, EXTRA} - {"one-gpu-home"}))
def test_pool_selects_clouds_pods_by_the_port_of_their_sidecars(folder: str) -> None:
    [cloud] = chosen(folder)
    assert cloud.name == "orch-cloud"
    assert [port["number"] for port in pool()["targetPorts"]] == [ports_of(cloud)["http"]]


def test_gateway_routes_the_api_to_the_pool_and_asks_the_picker() -> None:
    route = named(EXTRA, "HTTPRoute", "orch-inference").body["spec"]
    gateway = named(EXTRA, "Gateway", "orch-inference").body
    assert [each["name"] for each in route["parentRefs"]] == [gateway["metadata"]["name"]]
    [rule] = route["rules"]
    assert rule["backendRefs"] == [
        {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": "orch-cloud"}
    ]
    assert rule["matches"] == [{"path": {"type": "PathPrefix", "value": "/v1"}}]
    assert set(rule["timeouts"].values()) == {"0s"}, "streams are long"
    ref = pool()["endpointPickerRef"]
    service = named(EXTRA, "Service", ref["name"]).body["spec"]
    [port] = service["ports"]
    assert (port["port"], port["appProtocol"]) == (ref["port"]["number"], "http2")
    picker = named(EXTRA, "Deployment", "orch-picker")
    assert selects(service["selector"], pod_labels(picker))
    assert ports_of(picker)[port["targetPort"]] == port["port"]


def test_picker_reads_the_sidecars_page_and_queues_nothing_itself() -> None:
    picker = named(EXTRA, "Deployment", "orch-picker")
    [container] = picker.body["spec"]["template"]["spec"]["containers"]
    arguments = dict(each.removeprefix("--").split("=", 1) for each in container["args"])
    assert arguments["pool-name"] == "orch-cloud"
    group = named(EXTRA, "InferencePool", "orch-cloud").body["apiVersion"].partition("/")[0]
    assert arguments["pool-group"] == group
    [mount] = container["volumeMounts"]
    folder, _, file = arguments["config-file"].rpartition("/")
    assert folder == mount["mountPath"]
    [volume] = picker.body["spec"]["template"]["spec"]["volumes"]
    config = yaml.safe_load(
        named(EXTRA, "ConfigMap", volume["configMap"]["name"]).body["data"][file]
    )
    assert config["kind"] == "EndpointPickerConfig"
    plugins = {each["type"]: each.get("parameters", {}) for each in config["plugins"]}
    page = plugins["metrics-data-source"]["path"]
    assert page == "/metrics/model-server"
    assert not ENDPOINTS[page].needs_key, "a picker sends none"
    [profile] = config["schedulingProfiles"]
    assert {each["pluginRef"] for each in profile["plugins"]} <= set(plugins)
    assert "featureGates" not in config, "flow control would be a second queue"


def test_picker_may_read_what_it_watches_in_its_namespace_and_nothing_else() -> None:
    role = named(EXTRA, "Role", "orch-picker").body
    assert all(set(rule["verbs"]) == {"get", "list", "watch"} for rule in role["rules"])
    resources = {each for rule in role["rules"] for each in rule["resources"]}
    assert resources == {"inferencepools", "inferenceobjectives", "inferencemodelrewrites", "pods"}
    binding = named(EXTRA, "RoleBinding", "orch-picker").body
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    [subject] = binding["subjects"]
    account = named(EXTRA, "ServiceAccount", subject["name"]).body["metadata"]
    spec = named(EXTRA, "Deployment", "orch-picker").body["spec"]["template"]["spec"]
    assert (subject["namespace"], account["name"]) == ("orch", spec["serviceAccountName"])
    assert of_kind(EXTRA, "ClusterRole", "ClusterRoleBinding") == []


def test_gateway_and_picker_reach_the_pods_and_the_gateway_the_picker() -> None:
    gateway = named(EXTRA, "Gateway", "orch-inference").name
    of_gateway = {"gateway.networking.k8s.io/gateway-name": gateway}
    picker = named(EXTRA, "Deployment", "orch-picker")
    pods = named(EXTRA, "NetworkPolicy", "orch-inference-pool").body["spec"]
    assert all(selects(pods["podSelector"], pod_labels(each)) for each in chosen(EXTRA))
    [rule] = pods["ingress"]
    by_picker, by_gateway = rule["from"]
    assert selects(by_picker["podSelector"], pod_labels(picker))
    assert by_gateway == {"namespaceSelector": {}, "podSelector": {"matchLabels": of_gateway}}
    assert [port["port"] for port in rule["ports"]] == [pool()["targetPorts"][0]["number"]]
    policy = named(EXTRA, "NetworkPolicy", "orch-picker").body["spec"]
    assert selects(policy["podSelector"], pod_labels(picker))
    [rule] = policy["ingress"]
    assert rule["from"] == [by_gateway]
    assert [port["port"] for port in rule["ports"]] == [
        pool()["endpointPickerRef"]["port"]["number"]
    ]
