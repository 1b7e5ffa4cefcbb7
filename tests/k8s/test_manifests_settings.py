"""What pods are configured with: profiles, models, caches, traces, settings, commands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path, PurePosixPath
from typing import Final
from urllib.parse import urlsplit

import pytest
import yaml

from orch_sidecar import cli
from orch_sidecar.config.settings import SidecarSettings
from tests.k8s.objects import (
    DEPLOYMENTS,
    SETS,
    Manifest,
    container,
    containers,
    deployments,
    environment,
    from_config_maps,
    manifests,
    mount_of,
    mounts,
    named,
    named_in,
    of_kind,
    pod_labels,
    pod_spec,
    pools,
    ports_of,
)
from vllm_plugin.contracts import profile as profiles
from vllm_plugin.evidence.epoch_key import KEY_VARIABLE

INSTANCE: Final = "app.kubernetes.io/instance"
# Of pools whose name is not that of their profile.
PROFILES: Final = {"small": "cloud"}
every_set = pytest.mark.parametrize("folder", SETS)
every_deployment = pytest.mark.parametrize("deployment", deployments(), ids=lambda each: each.file)
every_pool = pytest.mark.parametrize("deployment", pools(), ids=lambda each: each.file)


@every_deployment
def test_settings_in_the_environment_are_settings_of_the_sidecar(deployment: Manifest) -> None:
    known = {f"ORCH_{name.upper()}" for name in SidecarSettings.model_fields} | {"ORCH_CONFIG"}
    for each in containers(deployment):
        given = {name for name in environment(each) if name.startswith("ORCH_")}
        assert given <= (known if each["name"] == "sidecar" else {"ORCH_PROFILE", KEY_VARIABLE})


@every_pool
def test_engine_and_its_sidecar_have_one_profile_and_meet_on_the_loopback(
    deployment: Manifest,
) -> None:
    engine, sidecar = container(deployment, "vllm"), container(deployment, "sidecar")
    for each in (engine, sidecar):
        field = environment(each)["POOL"]["valueFrom"]["fieldRef"]["fieldPath"]
        assert field == f"metadata.labels['{INSTANCE}']"
    instance = pod_labels(deployment)[INSTANCE]
    [path] = {
        environment(each)["ORCH_PROFILE"]["value"].replace("$(POOL)", instance)
        for each in (engine, sidecar)
    }
    data = named(deployment.folder, "ConfigMap", "orch-profiles").body["data"]
    assert PurePosixPath(path).name in data
    wanted = PROFILES.get(instance, instance)
    assert profiles.load(PurePosixPath(path).stem).name == wanted
    assert deployment.name == f"orch-{instance}"
    for each in (engine, sidecar):
        mount = mount_of(each, path)
        assert mount is not None
        assert (mount["name"], mount["mountPath"]) == ("profiles", str(PurePosixPath(path).parent))
    url = urlsplit(environment(sidecar)["ORCH_ENGINE_URL"]["value"])
    assert f"--host={url.hostname}" in engine["args"]
    assert f"--port={url.port}" in engine["args"]
    assert url.hostname == "127.0.0.1"


@every_pool
def test_engine_writes_to_volumes_alone(deployment: Manifest) -> None:
    engine = container(deployment, "vllm")
    paths = {
        name: variable["value"]
        for name, variable in environment(engine).items()
        if name.endswith(("HOME", "_DIR", "_ROOT", "TMPDIR"))
    }
    assert {"HOME", "HF_HOME", "TMPDIR", "VLLM_CACHE_ROOT", "TRITON_CACHE_DIR"} <= set(paths)
    for name, path in paths.items():
        mount = mount_of(engine, path)
        assert mount is not None, name
        assert not mount.get("readOnly"), name
    assert "USER" in environment(engine), "the user id has no name, and getpass needs one"
    shm = next(one for one in pod_spec(deployment)["volumes"] if one["name"] == "shm")
    assert mounts(engine)["/dev/shm"]["name"] == "shm"
    assert shm["emptyDir"]["medium"] == "Memory"


@every_pool
def test_model_comes_from_its_config_map_and_is_kept_with_what_is_compiled(
    deployment: Manifest,
) -> None:
    engine = container(deployment, "vllm")
    model = from_config_maps(engine, deployment.folder)
    assert set(named_in(" ".join(engine["args"]))) <= set(model)
    assert from_config_maps(container(deployment, "download"), deployment.folder).items() <= (
        model.items()
    )
    token = environment(container(deployment, "download"))["HF_TOKEN"]["valueFrom"]["secretKeyRef"]
    assert token["optional"] is True
    for name in ("HF_HOME", "VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        cache = mount_of(engine, environment(engine)[name]["value"])
        assert cache is not None
        assert cache["name"] == "models"
    [volume] = [one for one in pod_spec(deployment)["volumes"] if one["name"] == "models"]
    named(deployment.folder, "PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"])


def test_default_claims_bind_with_every_storage_class_and_shared_ones_are_one() -> None:
    claims = {
        folder: [
            (each.name, *each.body["spec"]["accessModes"])
            for each in of_kind(folder, "PersistentVolumeClaim")
        ]
        for folder in SETS
    }
    per_pool = [("orch-models-cloud", "ReadWriteOnce"), ("orch-models-home", "ReadWriteOnce")]
    assert sorted(claims["gpu"]) == per_pool
    assert claims["one-gpu"] == per_pool[:1]
    assert claims["one-gpu-home"] == per_pool[1:]
    assert claims["cpu"] == [("orch-models-cpu", "ReadWriteOnce")], "one node, one download"
    assert claims["own"] == [("orch-models-shared", "ReadWriteMany")], "one download"


def test_context_of_the_default_model_fits_a_card_of_16_gb() -> None:
    """Qwen3-4B in bfloat16, from its config.json: as in base/parameters."""
    weights = 4.02e9 * 2
    layers, heads, head_size = 36, 8, 128
    per_token = 2 * layers * heads * head_size * 2
    assert per_token == 144 * 1024
    usable = 0.92 * 15.5 * 2**30 - 2 * 2**30  # a card of 16 GB shows 15.5 GiB and more
    given = int(named("gpu", "ConfigMap", "orch-model").body["data"]["MAX_MODEL_LEN"])
    assert weights + given * per_token <= usable
    assert weights + 40_960 * per_token > usable, "the model's own context does not"


@every_deployment
def test_traces_name_their_pod_and_node_and_go_where_one_variable_points(
    deployment: Manifest,
) -> None:
    for each in containers(deployment):
        if each["name"] not in ("vllm", "sidecar"):
            continue
        exported = from_config_maps(each, deployment.folder)
        assert exported["OTEL_EXPORTER_OTLP_PROTOCOL"] == "grpc"
        endpoint = urlsplit(exported["OTEL_EXPORTER_OTLP_ENDPOINT"])
        if deployment.folder == "own":
            assert endpoint.hostname == "collector.tracing"
        else:
            jaeger = named(deployment.folder, "Service", "orch-jaeger")
            ports = {port["name"]: port["port"] for port in jaeger.body["spec"]["ports"]}
            assert (endpoint.hostname, endpoint.port) == (jaeger.name, ports["otlp-grpc"])
        variables = environment(each)
        pairs = variables["OTEL_RESOURCE_ATTRIBUTES"]["value"].split(",")
        attributes = dict(pair.split("=") for pair in pairs)
        fields = {
            "k8s.namespace.name": "metadata.namespace",
            "k8s.pod.name": "metadata.name",
            "k8s.pod.uid": "metadata.uid",
            "k8s.node.name": "spec.nodeName",
        }
        for attribute, field in fields.items():
            [name] = named_in(attributes[attribute])
            assert variables[name]["valueFrom"]["fieldRef"]["fieldPath"] == field


def test_collector_takes_the_place_of_jaeger_whole() -> None:
    assert [each for each in manifests("own") if "jaeger" in each.name] == []


@every_set
def test_entry_reads_its_settings_and_reaches_every_pool(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("ORCH_")]:
        monkeypatch.delenv(name)
    entry = named(folder, "Deployment", "orch-entry")
    sidecar = container(entry, "sidecar")
    path = PurePosixPath(environment(sidecar)["ORCH_CONFIG"]["value"])
    mount = mount_of(sidecar, str(path))
    assert mount is not None
    volume = next(one for one in pod_spec(entry)["volumes"] if one["name"] == mount["name"])
    text = named(folder, "ConfigMap", volume["configMap"]["name"]).body["data"][path.name]
    (tmp_path / "sidecar.yaml").write_text(text)
    settings = cli.read_settings(["--config", str(tmp_path / "sidecar.yaml")])
    assert settings.port == ports_of(entry)["http"]
    assert settings.host == "0.0.0.0"
    assert settings.admin_host == "127.0.0.1"
    assert settings.pools is not None
    data = named(folder, "ConfigMap", "orch-profiles").body["data"]
    deployed = {each.name for each in of_kind(folder, "Deployment")}
    assert settings.entries == entry.body["spec"]["replicas"]
    names = {pool.name for pool in settings.pools}
    assert names == {name for name, each in DEPLOYMENTS.items() if each in deployed}
    for pool in settings.pools:
        service = named(folder, "Service", f"orch-{pool.name}")
        port = service.body["spec"]["ports"][0]["port"]
        assert pool.url == f"http://{service.name}:{port}"
        assert pool.tier
        assert pool.headless
        assert pool.on_request == (pool.name == "home" and len(names) > 1)
        profile = yaml.safe_load(data[PurePosixPath(pool.profile).name])["name"]
        assert profile == PROFILES.get(pool.name, pool.name)
        mount = mount_of(sidecar, pool.profile)
        assert mount is not None
        assert mount["name"] == "profiles"
    keys = mount_of(sidecar, str(settings.api_keys_file))
    assert keys is not None
    assert keys["name"] == "keys"


@pytest.mark.parametrize("command", ["sidecar", "drain"])
def test_commands_of_ours_are_run_with_flags_that_they_have(command: str) -> None:
    """Every word of such a command in the manifests, up to the values, stands in its help."""
    output = subprocess.run(
        [sys.executable, "-m", "orch_sidecar", command, "--help"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    found = 0
    for deployment in deployments():
        for words in commands(deployment):
            if "orch_sidecar" in words:
                run, *rest = words[words.index("orch_sidecar") + 1 :]
                found += run == command
                flags = [word for word in rest if word.startswith("--")]
                assert run != command or all(flag in output for flag in flags)
    assert found


def commands(deployment: Manifest) -> list[list[str]]:
    """The commands of its containers and of their hooks."""
    found = []
    for each in containers(deployment):
        found.append([*each.get("command", ()), *each.get("args", ())])
        found += [hook["exec"]["command"] for hook in each.get("lifecycle", {}).values()]
    return found
