"""What is generated of the manifests is what the generator would write: run `make k8s`."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from k8s import cpu_variant, generate
from tests.k8s.objects import (
    K8S,
    ROOT,
    SETS,
    Manifest,
    container,
    folder_of,
    manifests,
    named,
    of_kind,
    pod_spec,
)

REMEDY: Final = "run `make k8s`"
every_set = pytest.mark.parametrize("folder", SETS)
UNPACKING: Final = [
    each
    for folder in SETS
    for each in of_kind(folder, "Deployment")
    if each.name in ("orch-home", "orch-cloud", "orch-entry")
]


@pytest.fixture(scope="module")
def built() -> bytes:
    """The wheel of this tree."""
    return generate.build()


@pytest.fixture(scope="module")
def wheel() -> bytes:
    """The wheel that the manifests hold."""
    found = generate.laid_down()
    assert found is not None, REMEDY
    return found


def lay_out(deployment: Manifest, directory: Path) -> Path:
    """The volume `wheel` of a Deployment, as the kubelet lays it out."""
    directory.mkdir()
    [volume] = [each for each in pod_spec(deployment)["volumes"] if each["name"] == "wheel"]
    for source in volume["projected"]["sources"]:
        name = source["configMap"]["name"]
        body = named(folder_of(deployment), "ConfigMap", name).body
        for file, text in body.get("data", {}).items():
            (directory / file).write_text(text)
        for file, text in body.get("binaryData", {}).items():
            (directory / file).write_bytes(base64.b64decode(text, validate=True))
    return directory


def test_wheel_in_the_manifests_is_the_wheel_of_this_tree(built: bytes, wheel: bytes) -> None:
    there, wanted = generate.contents(wheel), generate.contents(built)
    assert sorted(there) == sorted(wanted), REMEDY
    assert [name for name in wanted if there[name] != wanted[name]] == [], REMEDY


def test_wheel_is_built_the_same_twice(built: bytes) -> None:
    again = generate.build()
    assert hashlib.sha256(again).digest() == hashlib.sha256(built).digest()


def test_every_generated_file_is_what_the_generator_writes(wheel: bytes) -> None:
    texts = dict(generate.generated(wheel))
    there = {
        str(path.relative_to(K8S)): path.read_text(encoding="utf-8")
        for folder in SETS
        for path in (K8S / folder).glob("*.yaml")
    }
    assert sorted(there) == sorted(texts), REMEDY
    assert [name for name in texts if there[name] != texts[name]] == [], REMEDY


@every_set
def test_profiles_in_the_config_map_are_the_profiles_of_engines_behind_sidecars(
    folder: str,
) -> None:
    data = named(folder, "ConfigMap", "orch-profiles").body["data"]
    files = {path.name: path.read_text() for path in (ROOT / "profiles").glob("*.yaml")}
    assert {name: text.replace("unleased: refuse\n", "") for name, text in data.items()} == files
    assert all(yaml.safe_load(text)["unleased"] == "refuse" for text in data.values())


@every_set
def test_pods_carry_the_digest_of_the_wheel(folder: str, wheel: bytes) -> None:
    """`kubectl apply` rolls them when the wheel changes; ConfigMaps alone would roll none."""
    stamp = generate.digest(generate.contents(wheel))
    for deployment in of_kind(folder, "Deployment"):
        if deployment.name != "orch-jaeger":
            template = deployment.body["spec"]["template"]
            assert template["metadata"]["annotations"]["orch/wheel"] == stamp


def test_digest_is_another_when_a_member_is() -> None:
    assert generate.digest({"a": b"1"}) != generate.digest({"a": b"2"})
    assert generate.digest({"a": b"1"}) != generate.digest({"b": b"1"})


def test_variant_for_cpus_says_which_text_it_misses() -> None:
    with pytest.raises(cpu_variant.NotFound, match=r"13-model\.yaml does not hold .*\n.*Qwen"):
        cpu_variant.variant("13-model.yaml", "data: {}\n")


def test_variant_for_cpus_runs_the_engine_with_all_that_the_other_has() -> None:
    for name in ("orch-home", "orch-cloud"):
        usual, small = (
            container(named(folder, "Deployment", name), "vllm")["args"] for folder in SETS
        )
        assert set(usual) < set(small)


def test_both_sets_have_the_same_objects() -> None:
    usual, small = ([(each.kind, each.name) for each in manifests(folder)] for folder in SETS)
    assert usual == small


def test_wheel_that_is_too_large_is_refused_with_both_sizes() -> None:
    size = generate.PARTS * generate.PART_LIMIT + 1
    with pytest.raises(generate.TooLarge, match=f"{size} bytes.* hold {size - 1}"):
        dict(generate.generated(bytes(size)))


def unpack(parts: Path, target: Path) -> subprocess.CompletedProcess[str]:
    """Runs the unpacker as the manifests do."""
    [words] = {tuple(container(each, "unpack")["command"]) for each in UNPACKING}
    assert list(words) == [
        "python3",
        "-I",
        "/etc/orch/wheel/unpack.py",
        "/etc/orch/wheel",
        "/opt/orch",
    ]
    command = [sys.executable, "-I", str(parts / "unpack.py"), str(parts), str(target)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.parametrize("deployment", UNPACKING, ids=lambda each: each.file)
def test_unpacker_lays_out_the_wheel_compiled(
    deployment: Manifest, wheel: bytes, tmp_path: Path
) -> None:
    target = tmp_path / "orch"
    result = unpack(lay_out(deployment, tmp_path / "parts"), target)
    assert result.returncode == 0, result.stderr
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        for name in archive.namelist():
            assert (target / name).read_bytes() == archive.read(name)
            if name.endswith(".py"):
                assert list((target / name).parent.glob(f"__pycache__/{Path(name).stem}.*.pyc"))


def test_parts_of_different_builds_are_not_unpacked(tmp_path: Path) -> None:
    parts = lay_out(UNPACKING[0], tmp_path / "parts")
    with (parts / "wheel.1").open("r+b") as part:
        part.write(b"\0\0\0\0")
    result = unpack(parts, tmp_path / "orch")
    assert result.returncode == 1
    assert "of different builds; apply all of them" in result.stderr
    assert not (tmp_path / "orch").exists()


def test_missing_part_is_named_in_what_was_joined(tmp_path: Path) -> None:
    parts = lay_out(UNPACKING[0], tmp_path / "parts")
    (parts / "wheel.2").unlink()
    result = unpack(parts, tmp_path / "orch")
    assert result.returncode == 1
    assert "wheel.0, wheel.1, wheel.3, wheel.4 joined have sha256" in result.stderr


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python as in the image: this environment's packages, but none of this project's."""
    home = tmp_path_factory.mktemp("image")
    venv.create(home, symlinks=True)
    here = Path(os.__file__).parent.name
    ours = ("_editable_impl_orch", "orch_sidecar", "orch_vllm_plugin", "vllm_plugin")
    [packages] = [Path(path) for path in sys.path if path.endswith(f"{here}/site-packages")]
    for path in packages.iterdir():
        if not path.name.startswith(ours):
            (home / "lib" / here / "site-packages" / path.name).symlink_to(path)
    return home / "bin" / "python3"


_PROBE: Final = """
import importlib.metadata, json, os
from vllm_plugin import allowlist, register
allowlist.ensure(os.environ)
print(json.dumps({
    "groups": sorted(p.group for p in importlib.metadata.entry_points(name="orch")),
    "plugins": os.environ["VLLM_PLUGINS"].split(","),
    "from": register.__file__,
}))
"""


def test_plugin_and_sidecar_work_from_the_path_alone(image: Path, tmp_path: Path) -> None:
    """Entry points are found beside the packages; no `.pth` file is read there, none is needed."""
    target = tmp_path / "orch"
    assert unpack(lay_out(UNPACKING[0], tmp_path / "parts"), target).returncode == 0
    clean = {"PATH": os.environ["PATH"], "ORCH_PROFILE": str(ROOT / "profiles" / "home.yaml")}

    def run(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
        command = [str(image), *words]
        return subprocess.run(command, cwd="/", env=clean | more, capture_output=True, text=True)

    without = run("-c", "import vllm_plugin")
    assert "ModuleNotFoundError" in without.stderr, "the fixture must hide this tree"
    result = run("-c", _PROBE, PYTHONPATH=str(target))
    assert result.returncode == 0, result.stderr
    told: dict[str, Any] = json.loads(result.stdout)
    vllm = ["vllm.endpoint_plugins", "vllm.general_plugins", "vllm.stat_logger_plugins"]
    assert told["groups"] == ["console_scripts", *vllm]
    assert "orch" in told["plugins"]
    assert told["from"] == str(target / "vllm_plugin" / "register.py")
    helped = run("-m", "orch_sidecar", "sidecar", "--help", PYTHONPATH=str(target))
    assert helped.returncode == 0, helped.stderr
