"""Who reaches what, who needs a key, and what a delete takes along.

What sidecars do with these settings is in tests/integration/test_rendered.py.

What the manifests name is there: pods, ports, volumes, objects, keys, variables.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from k8s import render
from tests.k8s.objects import (
    DEFAULT,
    DEPLOYMENTS,
    EXTRAS,
    GUIDE,
    K8S,
    OTHERS,
    OWN,
    SETS,
    WITH_KEYS,
    Manifest,
    constants,
    container,
    containers,
    credentials,
    deployments,
    from_config_maps,
    manifests,
    mount_of,
    named,
    named_in,
    of_kind,
    pod_labels,
    pod_spec,
    ports_of,
    references,
    selects,
)
from tests.k8s.serverside import apply
from tests.k8s.test_manifests_documented import documented
from tests.k8s.test_manifests_nodes import LEADER, SERVED, WORKER

READY: Final = tuple(sorted({*SETS, *OTHERS} - {*OWN}))
# What others build on. Rendered, not applied.
BUILT_ON: Final = (
    *(path.parent for path in sorted(K8S.glob("installations/*/kustomization.yaml"))),
    *(K8S / "overlays" / name for name in EXTRAS),
    *(K8S / name for name in ("base", "jaeger", "installations/inference-pool/picker")),
)
KEYS: Final = "/etc/orch/keys/keys.yaml"


def kinds(folder: str) -> set[str]:
    return {each.kind for each in manifests(folder)}


@pytest.mark.parametrize("folder", BUILT_ON, ids=lambda each: str(each.relative_to(K8S)))
def test_what_others_build_on_has_no_namespace(folder: Any) -> None:
    """Theirs would be renamed to the team's: a delete takes all of that along."""
    bodies = [body for _, body in render.documents(render.kustomize(folder))]
    assert bodies
    assert "Namespace" not in {body["kind"] for body in bodies}


@pytest.mark.parametrize("folder", READY)
def test_ready_overlay_makes_its_namespace(folder: str) -> None:
    [namespace] = of_kind(folder, "Namespace")
    assert namespace.name == "orch"


@pytest.mark.parametrize("folder", OWN)
def test_own_overlay_deletes_no_namespace_and_restricts_none(folder: str) -> None:
    assert "Namespace" not in kinds(folder)
    assert "pod-security" not in json.dumps([each.body for each in manifests(folder)])


def test_pods_of_other_kinds_are_isolated_too() -> None:
    deny = named("multi-node", "NetworkPolicy", "orch-deny").body["spec"]["podSelector"]
    assert selects(deny, pod_labels(LEADER))
    assert selects(deny, pod_labels(WORKER))
    # KServe's pods have labels of its own, and a policy of their own.
    [rule] = named("kserve", "NetworkPolicy", "orch-kserve").body["spec"]["ingress"]
    assert [port["port"] for port in rule["ports"]] == [8000]


def served_pods(folder: str) -> list[Manifest]:
    """What runs engines in an overlay."""
    other = {"kserve": [SERVED], "multi-node": [LEADER]}.get(folder, [])
    pools = [each for each in of_kind(folder, "Deployment") if each.name in DEPLOYMENTS.values()]
    return [*pools, *other]


@pytest.mark.parametrize("folder", [*SETS, *OTHERS])
def test_pools_take_claims_from_whom_the_network_lets_in_or_by_key(folder: str) -> None:
    """Whom it lets in is in test_manifests_leaving."""
    assert served_pods(folder)
    for pool in served_pods(folder):
        sidecar = container(pool, "sidecar")
        parents = constants(sidecar)["ORCH_PARENTS"]
        assert parents == ("keys" if folder in WITH_KEYS else "open"), pool.file
        assert ("ORCH_API_KEYS_FILE" in constants(sidecar)) == (folder in WITH_KEYS)


@pytest.mark.parametrize("folder", WITH_KEYS)
def test_keys_are_read_where_clients_come_and_the_entry_s_own_is_the_entry_s(folder: str) -> None:
    entries = [each for each in of_kind(folder, "Deployment") if each.name == "orch-entry"]
    assert len(entries) == (folder != "kserve")
    for each in (*served_pods(folder), *entries):
        sidecar, volumes = container(each, "sidecar"), pod_spec(each)["volumes"]
        mount = mount_of(sidecar, KEYS)
        assert mount is not None, each.file
        assert mount["readOnly"], each.file
        [secret] = [one["secret"] for one in volumes if one["name"] == mount["name"]]
        assert secret["secretName"] == "orch-api-keys"
        assert not secret.get("optional"), each.file
        assert constants(sidecar).get("ORCH_API_KEYS_REQUIRED", "true") == "true"
        salt = constants(sidecar)["ORCH_CACHE_SALT_FILE"]
        assert mount_of(sidecar, salt) == mount
        own = mount_of(sidecar, "/etc/orch/sidecar/key")
        assert (own is not None) == (each in entries), each.file


def test_leaders_of_engines_over_several_nodes_ask_for_keys_too(tmp_path: Path) -> None:
    """A kind whose lists kustomize does not merge by names, as it does those of a Deployment."""
    own = {
        "resources": [os.path.relpath(K8S / "installations/multi-node", tmp_path)],
        "components": [os.path.relpath(K8S / "components/api-keys", tmp_path)],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(own), encoding="utf-8")
    bodies = [body for _, body in render.documents(render.kustomize(tmp_path))]
    [nodes] = [body for body in bodies if body["kind"] == "LeaderWorkerSet"]
    pod = nodes["spec"]["leaderWorkerTemplate"]["leaderTemplate"]["spec"]
    leader, pool = (
        Manifest("own", {"spec": {"template": {"spec": pod}}}),
        served_pods("own_keys")[0],
    )
    for name in ("ORCH_PARENTS", "ORCH_API_KEYS_FILE", "ORCH_CACHE_SALT_FILE"):
        expected = constants(container(pool, "sidecar"))[name]
        assert constants(container(leader, "sidecar"))[name] == expected
    mount = mount_of(container(leader, "sidecar"), KEYS)
    assert mount == mount_of(container(pool, "sidecar"), KEYS)
    assert {"name": "keys", "secret": {"secretName": "orch-api-keys"}} in pod["volumes"]


@pytest.mark.parametrize("folder", sorted({*SETS} - {*WITH_KEYS}))
def test_secret_of_before_is_read_as_before_and_its_absence_is_meant(folder: str) -> None:
    """Who has it has keys after an update; whoever wants no start without it says so."""
    entry = named(folder, "Deployment", "orch-entry")
    settings = settings_of(folder)
    assert (settings["api_keys_file"], settings["api_keys_required"]) == (KEYS, False)
    mount = mount_of(container(entry, "sidecar"), KEYS)
    assert mount is not None
    [secret] = [one for one in pod_spec(entry)["volumes"] if one["name"] == mount["name"]]
    assert secret["secret"] == {"secretName": "orch-api-keys", "optional": True}
    assert "ORCH_API_KEYS_REQUIRED" not in constants(container(entry, "sidecar"))


def settings_of(folder: str, file: str = "sidecar.yaml") -> dict[str, Any]:
    text = named(folder, "ConfigMap", "orch-entry").body["data"][file]
    settings: dict[str, Any] = yaml.safe_load(text)
    return settings


@pytest.mark.parametrize("folder", SETS)
def test_settings_with_keys_are_those_without_and_the_entry_s_own_key(folder: str) -> None:
    """Of two files in one ConfigMap, which has no key itself."""
    without, settings = settings_of(folder), settings_of(folder, "sidecar-keys.yaml")
    assert without.pop("api_keys_required") is False
    paths = {pool.pop("api_key_file") for pool in settings["pools"]}
    assert settings == without
    entry = named(folder, "Deployment", "orch-entry")
    config = constants(container(entry, "sidecar"))["ORCH_CONFIG"]
    if folder not in WITH_KEYS:
        assert config.endswith("/sidecar.yaml")
        return
    assert config.endswith("/sidecar-keys.yaml")
    [path] = paths
    mount = mount_of(container(entry, "sidecar"), path)
    assert mount is not None
    [volume] = [one for one in pod_spec(entry)["volumes"] if one["name"] == mount["name"]]
    assert volume["secret"] == {"secretName": "orch-sidecar-key"}


def test_documented_opt_in_is_kept_by_the_next_apply() -> None:
    [words] = [each for each in documented() if "ORCH_API_KEYS_REQUIRED=true" in each]
    assert words[:3] == ["kubectl", "-n", "orch"]
    assert words[3:6] == ["set", "env", "deployment/orch-entry"]
    body = dict(named(DEFAULT, "Deployment", "orch-entry").body)
    path = ("spec", "template", "spec", "containers", "name=sidecar", "env")
    variable = (*path, "name=ORCH_API_KEYS_REQUIRED", "value")
    live = apply({}, None, body) | {variable: "true"}
    assert apply(live, body, body)[variable] == "true"


def test_documented_steps_give_the_entry_its_key_then_the_pools_theirs_then_gateways_a_way() -> (
    None
):
    applies = [words for words in documented() if "my-overlay" in words]
    selectors = [words[words.index("-l") + 1] if "-l" in words else "" for words in applies]
    label = "app.kubernetes.io/component"
    assert selectors == [f"{label} in (config, entry)", f"{label}!=gateway", ""]
    component = {
        f"{each.kind}/{each.name}": each.body["metadata"]["labels"][label]
        for each in manifests("inference-pool")
    }
    assert component["Deployment/orch-entry"] == "entry"
    assert component["ConfigMap/orch-entry"] == component["ConfigMap/orch-code-sidecar"] == "config"
    assert component["Deployment/orch-cloud"] == component["Deployment/orch-home"] == "pool"
    for name in ("Gateway/orch-inference", "HTTPRoute/orch-inference", "InferencePool/orch-cloud"):
        assert component[name] == "gateway"
    assert component["NetworkPolicy/orch-inference-pool"] == "gateway", "the way itself"


@pytest.mark.parametrize("kind", ["PodMonitor", "ServiceMonitor"])
def test_monitors_beside_keys_send_one_to_every_page(kind: str) -> None:
    [with_key], [without] = of_kind("own_keys", kind), of_kind("monitoring", kind)
    pages = [each for each in with_key.body["spec"].values() if isinstance(each, list)]
    endpoints = [each for page in pages for each in page if isinstance(each, dict)]
    assert endpoints
    for each in endpoints:
        assert each["authorization"]["type"] == "Bearer"
    assert credentials(with_key) == len(endpoints) * [{"name": "orch-metrics-key", "key": "key"}]
    assert credentials(without) == []
    adding = [words for words in documented() if "orch-metrics-key" in words]
    assert [word for words in adding for word in words if word.startswith("--from-literal=key=")]


def test_gateway_says_how_its_fairness_ids_count() -> None:
    text = (K8S / "components" / "gateway" / "gateway.yaml").read_text(encoding="utf-8")
    assert "`gateways`" in text
    assert "gateway: true" in text
    for folder in ("inference-pool", "kserve"):
        text = (K8S / "installations" / folder / "kustomization.yaml").read_text(encoding="utf-8")
        assert "gateway: true" in text
    for each in (*SETS, *OTHERS):
        for deployment in of_kind(each, "Deployment"):
            assert "ORCH_GATEWAYS" not in json.dumps(deployment.body), "nobody is by default"


def test_readme_says_what_a_delete_of_everything_takes_along() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    assert re.search(r"`kubectl delete -f k8s/`[^\n]* delete the Namespace `orch`", text)
    assert re.search(r"network plugin must enforce them", text)


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
