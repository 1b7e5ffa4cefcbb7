"""The flat files and the generated inputs are what `make k8s` writes; names follow contents."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from k8s import render
from tests.k8s.objects import (
    DEFAULT,
    K8S,
    ROOT,
    SETS,
    Manifest,
    deployments,
    manifests,
    named,
    of_kind,
    pod_spec,
    references,
)

REMEDY: Final = "run `make k8s`"
every_set = pytest.mark.parametrize("folder", SETS)
UNPACK: Final = next(
    each["command"]
    for each in pod_spec(named(DEFAULT, "Deployment", "orch-entry"))["initContainers"]
)


def test_flat_files_are_the_rendered_default() -> None:
    wanted = render.flat()
    there = {path.name: path.read_text(encoding="utf-8") for path in K8S.glob("*.yaml")}
    assert sorted(there) == sorted(wanted), REMEDY
    assert [name for name in wanted if there[name] != wanted[name]] == [], REMEDY


def test_apply_of_the_folder_meets_the_namespace_first_and_one_object_per_file() -> None:
    paths = sorted(path for ending in ("yaml", "yml", "json") for path in K8S.glob(f"*.{ending}"))
    bodies = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in paths]
    assert (bodies[0]["kind"], bodies[0]["metadata"]["name"]) == ("Namespace", "orch")
    assert len(bodies) == len(manifests(DEFAULT))
    assert "Kustomization" not in {body["kind"] for body in bodies}, "kubectl apply -f fails on it"


def test_generated_inputs_hold_this_tree() -> None:
    for path, data in render.inputs().items():
        there = path.read_bytes()
        if path.suffix == ".bz2":
            assert render.unpacked(there) == render.unpacked(data), REMEDY
        else:
            assert there == data, REMEDY


def test_pods_get_the_packages_without_tools_batches_tests_and_documentation() -> None:
    packed = set().union(*render.runtime().values())
    for package in ("orch_sidecar", "vllm_plugin"):
        sources = {str(path.relative_to(ROOT)) for path in (ROOT / package).rglob("*.py")}
        left_out = ("orch_sidecar/tools/", "orch_sidecar/batches/")
        apart = {name for name in sources if name.startswith(left_out)}
        apart -= {"orch_sidecar/tools/__init__.py", "orch_sidecar/tools/drain.py"}
        assert {name for name in packed if name.startswith(f"{package}/")} & apart == set()
        assert sources - apart <= packed
    assert not [name for name in packed if name.startswith("tests/") or name.endswith(".md")]


def test_modules_that_were_compiled_in_the_tree_are_not_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "orch_sidecar" / "wire").mkdir(parents=True)
    for name in ("http.py", "http.cpython-312-x86_64-linux-gnu.so"):
        (tmp_path / "orch_sidecar" / "wire" / name).touch()
    for name in ("pyproject.toml", "vllm_plugin"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.setattr(render, "ROOT", tmp_path)
    assert list(render.runtime()["serving"]) == ["orch_sidecar/wire/http.py"]


def test_archive_is_the_same_whenever_it_is_made_and_another_for_other_members() -> None:
    members = {"a/b.py": b"1", "a/a.py": b"2"}
    packed = render.pack(members)
    assert packed == render.pack(dict(reversed(members.items())))
    assert packed != render.pack({**members, "a/b.py": b"3"})
    assert render.unpacked(packed) == members


def test_archives_are_below_their_limit_and_their_sizes_are_those_that_are_printed() -> None:
    printed = "\n".join(render.sizes())
    for name, members in render.runtime().items():
        size = len((K8S / "base" / "runtime" / f"{name}.tar.bz2").read_bytes())
        assert size < 120_000, name
        assert f"{name}: {len(render.pack(members))} bytes" in printed


def test_archive_that_no_config_map_holds_is_refused_with_both_sizes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(render, "ARCHIVE_LIMIT", 10)
    with pytest.raises(render.TooLarge, match=r"archive of a has \d+ bytes, 10 are allowed"):
        render.pack({"a/b.py": b"1"})


@every_set
def test_profiles_of_pods_are_the_shipped_ones_behind_a_sidecar(folder: str) -> None:
    data = named(folder, "ConfigMap", "orch-profiles").body["data"]
    shipped = {path.name: path.read_text() for path in (ROOT / "profiles").glob("*.yaml")}
    assert set(data) == set(shipped)
    for name, text in data.items():
        assert yaml.safe_load(text) == yaml.safe_load(shipped[name]) | {"unleased": "refuse"}


@every_set
def test_every_config_map_that_pods_read_is_immutable_and_named_by_its_contents(
    folder: str,
) -> None:
    read = {
        name
        for each in of_kind(folder, "Deployment")
        for kind, name, *_ in references(each)
        if kind == "ConfigMap"
    }
    assert read
    for name in read:
        found = named(folder, "ConfigMap", name)
        assert found.hashed
        assert found.full_name == name != found.name


@pytest.fixture
def changed(tmp_path: Path) -> dict[str, dict[str, Any]]:
    """The default of another release: other code, another model; by kind and name."""
    copy = tmp_path / "k8s"
    shutil.copytree(K8S, copy, ignore=shutil.ignore_patterns("*.py", "images"))
    sidecar = copy / "base" / "runtime" / "sidecar.tar.bz2"
    sidecar.write_bytes(sidecar.read_bytes() + b"\n")
    parameters = copy / "base" / "parameters" / "parameters.env"
    parameters.write_text(parameters.read_text().replace("NAME=qwen3-4b", "NAME=other"))
    rendered = render.kustomize(copy / "overlays" / DEFAULT)
    return {
        f"{body['kind']}/{body['metadata']['name']}": body for _, body in render.documents(rendered)
    }


def test_another_release_leaves_the_config_maps_of_the_last_one_alone(
    changed: dict[str, dict[str, Any]],
) -> None:
    """`rollout undo` brings back a template whose names still lead to the old contents."""
    before = {f"{each.kind}/{each.full_name}": each for each in manifests(DEFAULT)}
    gone = {before[name].name for name in set(before) - set(changed)}
    assert gone == {"orch-code-sidecar", "orch-model"}, "new names for what changed, and no other"
    for name in set(before) & set(changed):
        if before[name].kind == "ConfigMap":
            assert before[name].body == changed[name], "a name stands for one content"
    rolled = {
        each.name
        for each in of_kind(DEFAULT, "Deployment")
        if each.body["spec"]["template"]
        != changed[f"Deployment/{each.full_name}"]["spec"]["template"]
    }
    assert rolled == {"orch-home", "orch-cloud", "orch-entry"}


@pytest.mark.parametrize("deployment", deployments(), ids=lambda each: each.file)
def test_unpacking_is_the_same_everywhere(deployment: Manifest) -> None:
    commands = [
        each["command"]
        for each in pod_spec(deployment).get("initContainers", ())
        if each["name"] == "unpack"
    ]
    if deployment.name == "orch-jaeger":
        assert commands == []
    elif deployment.folder == "own_images":
        assert commands == [["cp", "-r", "/code/.", "/opt/orch"]]
    else:
        assert commands == [UNPACK]
