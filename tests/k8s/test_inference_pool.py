"""The endpoint picker as an entry: what it selects and reads, and which pods reach which.

The shapes are those of the documents that the manifests name: these kinds have no schema here.
"""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from orch_sidecar.api.endpoints import ENDPOINTS
from tests.k8s.objects import SETS, Manifest, named, of_kind, pod_labels, ports_of, selects

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
