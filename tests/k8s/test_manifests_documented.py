"""The kubectl commands of the page about Kubernetes name folders, objects and ports that exist."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import yaml

from k8s import render
from tests.k8s.objects import (
    DEFAULT,
    EXTRAS,
    GUIDE,
    K8S,
    OTHERS,
    OWN,
    ROOT,
    SETS,
    Manifest,
    components,
    container,
    containers,
    credentials,
    named,
    of_kind,
    pod_spec,
    references,
)
from tests.k8s.test_manifests_schema import check, minors

_KINDS: Final = {
    "deployment": "Deployment",
    "deploy": "Deployment",
    "service": "Service",
    "svc": "Service",
    "configmap": "ConfigMap",
    "hpa": "HorizontalPodAutoscaler",
}


def commands(text: str) -> Iterator[list[str]]:
    """Yields the words of each kubectl command in a text, in blocks and in lines."""
    for line in text.replace("\\\n", " ").splitlines():
        for part in re.findall(r"(?:^|`)\s*(kubectl [^`]*)", line):
            yield [word for word in shlex.split(part, comments=True) if word != "&"]


def documented() -> list[list[str]]:
    return list(commands(GUIDE.read_text(encoding="utf-8")))


def objections(words: list[str]) -> list[str]:
    """Returns what a command names that does not exist."""
    found = []
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word == "-f" and following != "-" and not list((ROOT / following).glob("*.yaml")):
            found.append(f"{following} has no manifests")
        if word == "-n" and following != "orch":
            found.append(f"namespace {following}")
        if word == "-c" and following not in containers_of(words):
            found.append(f"container {following}")
    for kind, name in re.findall(r"(?<= )([a-z]+)/([a-z0-9-]+)(?= |$)", " ".join(words)):
        if kind not in _KINDS or name not in {each.name for each in of_kind(DEFAULT, _KINDS[kind])}:
            found.append(f"{kind}/{name}")
    if "port-forward" in words:
        target, ports = words[words.index("port-forward") + 1 :][:2]
        service = named(DEFAULT, "Service", target.partition("/")[2]).body["spec"]
        if int(ports.partition(":")[2]) not in {port["port"] for port in service["ports"]}:
            found.append(f"port {ports} of {target}")
    if "secret" in words:
        name = words[words.index("secret") + 2]
        if name not in secrets():
            found.append(f"secret {name}")
    return found


def containers_of(words: list[str]) -> set[str]:
    """Returns the containers of the Deployment that a command names."""
    [target] = [word for word in words if word.startswith("deployment/")]
    deployment = named(DEFAULT, "Deployment", target.partition("/")[2])
    return {each["name"] for each in containers(deployment)}


def secrets() -> set[str]:
    """Returns the Secrets that pods and monitors read."""
    read = {
        name
        for folder in (DEFAULT, "own_keys")
        for each in of_kind(folder, "Deployment")
        for kind, name, *_ in references(each)
        if kind == "Secret"
    }
    monitors = of_kind("own_keys", "PodMonitor", "ServiceMonitor")
    return read | {each["name"] for monitor in monitors for each in credentials(monitor)}


def test_readme_names_every_overlay_and_component() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    overlays = {path.parent.name for path in K8S.glob("overlays/*/kustomization.yaml")}
    assert overlays == {*SETS, *EXTRAS, *OTHERS} - set(OWN)
    for name in overlays:
        assert f"overlays/{name}" in text
    installations = {path.parent.name for path in K8S.glob("installations/*/kustomization.yaml")}
    assert installations == overlays - set(EXTRAS)
    for component in components():
        assert f"`{component}`" in text


def test_readme_documents_apply_wait_port_forward_scale_secrets_and_delete() -> None:
    used = {word for words in documented() for word in words}
    assert {"apply", "wait", "port-forward", "scale", "delete", "secret"} <= used
    assert {"k8s/"} <= used


@pytest.mark.parametrize("words", documented(), ids=" ".join)
def test_documented_command_names_what_exists(words: list[str]) -> None:
    assert objections(words) == []


@pytest.mark.parametrize(
    "command",
    [
        "kubectl apply -f k8s/gpu/",
        "kubectl -n other wait deployment/orch-home",
        "kubectl -n orch wait --for=condition=Available deployment/orch-edge",
        "kubectl -n orch port-forward service/orch 8080:8080",
        "kubectl -n orch create secret generic orch-keys --from-file=keys.yaml",
        "kubectl -n orch logs deployment/orch-home -c engine",
    ],
)
def test_command_that_names_what_does_not_exist_is_reported(command: str) -> None:
    [words] = commands(command)
    assert len(objections(words)) == 1


def test_documented_patches_reach_what_they_are_for(tmp_path: Path) -> None:
    """As an overlay of one's own, which is validated as the others are."""
    text = GUIDE.read_text(encoding="utf-8")
    [block] = re.findall(r"^```yaml\n(images:.*?)^```", text, re.MULTILINE | re.DOTALL)
    installation = os.path.relpath(K8S / "installations" / DEFAULT, tmp_path)
    head = {"resources": [installation], "generatorOptions": {"immutable": True}}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(head) + block)
    found = {}
    for _, body in render.documents(render.kustomize(tmp_path)):
        each = Manifest("documented", body)
        check(body, minors()[-1])
        found[f"{each.kind}/{each.name}"] = each
    for name in ("orch-home", "orch-cloud", "orch-entry", "orch-jaeger"):
        for one in containers(found[f"Deployment/{name}"]):
            assert one["image"].startswith("registry.example.com/"), one["name"]
    cloud = found["Deployment/orch-cloud"]
    assert container(cloud, "vllm")["args"][-1] == "--max-num-seqs=64"
    assert "HF_ENDPOINT" in found["ConfigMap/orch-model"].body["data"]
    [source] = container(cloud, "download")["envFrom"]
    assert source["configMapRef"]["name"] == found["ConfigMap/orch-model"].full_name


def test_documented_wait_names_every_deployment() -> None:
    [waiting] = [words for words in documented() if "wait" in words]
    deployments = {f"deployment/{each.name}" for each in of_kind(DEFAULT, "Deployment")}
    assert deployments <= set(waiting)


def test_documented_secret_of_keys_is_mounted_where_the_entry_reads_them() -> None:
    adding = [words for words in documented() if "orch-api-keys" in words]
    assert len(adding) == 2
    [files] = {tuple(word for word in words if word.startswith("--from-file=")) for words in adding}
    file, salt = (word.partition("=")[2] for word in files)
    text = named(DEFAULT, "ConfigMap", "orch-entry").body["data"]["sidecar.yaml"]
    [path] = re.findall(r"^api_keys_file: (\S+)$", text, re.MULTILINE)
    [mount] = [
        each
        for each in container(named(DEFAULT, "Deployment", "orch-entry"), "sidecar")["volumeMounts"]
        if each["name"] == "keys"
    ]
    assert path == f"{mount['mountPath']}/{file}"
    assert [f"ORCH_CACHE_SALT_FILE={mount['mountPath']}/{salt}"] == [
        word for words in documented() for word in words if word.startswith("ORCH_CACHE")
    ]


@pytest.mark.parametrize("name", ["orch-home", "orch-cloud"])
def test_documented_secret_of_evidence_is_mounted_at_its_path(name: str) -> None:
    """Closed to others: the plugin refuses any other mode."""
    [adding] = [words for words in documented() if "orch-evidence" in words]
    [file] = [word.partition("=")[2] for word in adding if word.startswith("--from-file=")]
    [path] = [word.rpartition("=")[2] for word in adding if word.startswith("--from-literal=path=")]
    deployment = named(DEFAULT, "Deployment", name)
    [mount] = [
        each for each in container(deployment, "vllm")["volumeMounts"] if each["name"] == "evidence"
    ]
    assert path == f"{mount['mountPath']}/{file}"
    volumes = pod_spec(deployment)["volumes"]
    [secret] = [each["secret"] for each in volumes if each["name"] == "evidence"]
    assert secret["defaultMode"] & 0o027 == 0
    assert pod_spec(deployment)["securityContext"]["fsGroup"]


_KUBECTL: Final = """#!/bin/sh
case "$*" in
  *"get configmaps"*) printf 'configmap/%s\\n' $CONFIG_MAPS ;;
  *"get replicasets"*) cat "$REPLICA_SETS" ;;
  *) echo "$*" >> "$DONE" ;;
esac
"""


def test_documented_pruning_deletes_what_no_replica_set_reads(tmp_path: Path) -> None:
    """With a stand-in for kubectl: a cluster with one revision, and a ConfigMap of an old one."""
    text = GUIDE.read_text(encoding="utf-8")
    [pruning] = re.findall(r"^(comm .*?)^```", text, re.MULTILINE | re.DOTALL)
    there = [
        each
        for each in of_kind(DEFAULT, "ConfigMap")
        if each.body["metadata"]["labels"]["app.kubernetes.io/component"] == "config"
    ]
    (tmp_path / "kubectl").write_text(_KUBECTL)
    (tmp_path / "kubectl").chmod(0o755)
    sets = tmp_path / "replica-sets.yaml"
    sets.write_text(yaml.safe_dump_all(dict(each.body) for each in of_kind(DEFAULT, "Deployment")))
    names = [*(each.full_name for each in there), "orch-model-0123456789"]
    variables = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "CONFIG_MAPS": " ".join(names),
        "REPLICA_SETS": str(sets),
        "DONE": str(tmp_path / "done"),
    }
    subprocess.run(["bash", "-euc", pruning], env=variables, check=True)
    done = (tmp_path / "done").read_text()
    assert done == "-n orch delete configmap orch-model-0123456789\n"
