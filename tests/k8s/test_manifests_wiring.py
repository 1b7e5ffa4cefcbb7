"""What the manifests name is there: pods, ports, volumes, objects, keys, variables."""

from __future__ import annotations

from typing import Final

import pytest

from tests.k8s.objects import (
    DEPLOYMENTS,
    SETS,
    WITH_KEYS,
    Manifest,
    containers,
    deployments,
    from_config_maps,
    named,
    named_in,
    of_kind,
    pod_labels,
    pod_spec,
    ports_of,
    references,
    selects,
)

OPTIONAL_SECRETS: Final = {"orch-hf-token", "orch-evidence"}
# Optional unless the installation asks for API keys.
SECRETS_OF_KEYS: Final = {"orch-api-keys", "orch-sidecar-key"}

every_set = pytest.mark.parametrize("folder", SETS)
every_deployment = pytest.mark.parametrize("deployment", deployments(), ids=lambda each: each.file)


@every_set
def test_services_and_budgets_find_one_deployment_and_its_ports(folder: str) -> None:
    deployments = of_kind(folder, "Deployment")
    for each in of_kind(folder, "Service", "PodDisruptionBudget"):
        selector = each.body["spec"]["selector"]
        [chosen] = [one for one in deployments if selects(selector, pod_labels(one))]
        ports = each.body["spec"].get("ports", [])
        assert len({port["name"] for port in ports}) == len(ports)
        for port in ports:
            assert port["targetPort"] in (ports_of(chosen)[port["name"]], port["name"]), each.file


@every_set
def test_pools_are_found_by_address_also_while_they_are_not_ready(folder: str) -> None:
    """The sidecar of a pod reports whether it admits; one that drains still has requests."""
    services = [each for each in of_kind(folder, "Service") if each.name in DEPLOYMENTS.values()]
    assert services
    for spec in (each.body["spec"] for each in services):
        assert spec["clusterIP"] == "None"
        assert spec["publishNotReadyAddresses"] is True
        assert all(isinstance(port["targetPort"], int) for port in spec["ports"])


@every_deployment
def test_every_mount_has_its_volume_and_every_volume_a_mount(deployment: Manifest) -> None:
    volumes = [volume["name"] for volume in pod_spec(deployment)["volumes"]]
    mounted = set()
    for each in containers(deployment):
        paths = [mount["mountPath"] for mount in each["volumeMounts"]]
        assert len(set(paths)) == len(paths)
        mounted |= {mount["name"] for mount in each["volumeMounts"]}
    assert sorted(mounted) == sorted(volumes)


@every_deployment
def test_every_object_that_pods_read_is_there_or_optional(deployment: Manifest) -> None:
    for kind, name, key, optional in references(deployment):
        if kind == "Secret":
            keys = name in SECRETS_OF_KEYS
            assert keys or name in OPTIONAL_SECRETS
            assert optional == (not keys or deployment.folder not in WITH_KEYS)
            continue
        assert not optional
        found = named(deployment.folder, kind, name)
        if key is not None:
            assert key in found.body["data"]


@every_set
def test_nothing_is_there_that_no_pod_reads(folder: str) -> None:
    read = {
        (kind, name)
        for each in of_kind(folder, "Deployment")
        for kind, name, *_ in references(each)
    }
    for each in of_kind(folder, "ConfigMap", "PersistentVolumeClaim"):
        grafana = each.body["metadata"]["labels"].get("grafana_dashboard")
        assert grafana or (each.kind, each.full_name) in read, each.file


@every_deployment
def test_variables_that_a_value_refers_to_are_set_before_it(deployment: Manifest) -> None:
    """Kubernetes leaves `$(NAME)` as it is for a variable that comes later, or never."""
    for each in containers(deployment):
        seen: set[str] = set(from_config_maps(each, deployment.folder))
        for variable in each.get("env", ()):
            for name in named_in(variable.get("value", "")):
                assert name in seen, f"{each['name']}: $({name}) in {variable['name']}"
            assert variable["name"] not in seen
            seen.add(variable["name"])
        for word in (*each.get("command", ()), *each.get("args", ())):
            assert set(named_in(word)) <= seen
