"""The wheel: what it contains, and what it registers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from email import message_from_bytes
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from orch_sidecar.tools.compiled import modules
from tests.compiled import settings
from tests.import_graph import MODULES, PACKAGES, ROOT


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel, built from this tree."""
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    [path] = out.glob("*.whl")
    return zipfile.ZipFile(path)


def test_wheel_contains_both_packages_whole(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    for path in MODULES.values():
        assert str(path.relative_to(ROOT)) in names
    for package in PACKAGES:
        assert f"{package}/py.typed" in names


def test_wheel_contains_nothing_else(wheel: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0] for name in wheel.namelist()}
    [info] = [top for top in tops if top.endswith(".dist-info")]
    assert tops == {*PACKAGES, "orch_vllm_plugin.pth", info}
    unwanted = re.compile(r"__pycache__|/tests/|\.md$")
    assert not [name for name in wheel.namelist() if unwanted.search(name)]


def test_wheel_ships_the_profiles_as_they_are(wheel: zipfile.ZipFile) -> None:
    shipped = {path.name: path.read_bytes() for path in (ROOT / "profiles").glob("*.yaml")}
    assert set(shipped) == {"home.yaml", "cloud.yaml", "offline.yaml"}
    for name, content in shipped.items():
        assert wheel.read(f"vllm_plugin/profiles/{name}") == content


def test_wheel_ships_the_page_without_its_pictures(wheel: zipfile.ZipFile) -> None:
    files = [each for each in (ROOT / "orch_sidecar" / "ui").iterdir() if each.is_file()]
    shipped = {name for name in wheel.namelist() if name.startswith("orch_sidecar/ui/")}
    assert shipped == {f"orch_sidecar/ui/{each.name}" for each in files}


@pytest.mark.long
def test_compiled_wheel_has_each_compiled_module_beside_its_source(tmp_path: Path) -> None:
    """As `make compiled` builds it: apart from what is installed here."""
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", str(tmp_path)]
    environ = os.environ | {"HATCH_BUILD_HOOK_ENABLE_CUSTOM": "1"}
    done = subprocess.run([*command, str(ROOT)], env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    [path] = tmp_path.glob("*.whl")
    built = {name.partition(".")[0] for name in zipfile.ZipFile(path).namelist() if ".so" in name}
    assert built - {"orch__mypyc"} == {
        name.removesuffix(".py") for name in modules(ROOT, **settings())
    }


def test_wheel_puts_the_pth_file_where_site_reads_it(wheel: zipfile.ZipFile) -> None:
    source = (ROOT / "vllm_plugin" / "orch_vllm_plugin.pth").read_bytes()
    assert wheel.read("orch_vllm_plugin.pth") == source


def metadata_file(wheel: zipfile.ZipFile, name: str) -> bytes:
    """A file of the wheel's own metadata."""
    [path] = [p for p in wheel.namelist() if re.fullmatch(rf"[^/]+\.dist-info/{name}", p)]
    return wheel.read(path)


def registered(text: bytes) -> dict[str, str]:
    return dict(re.findall(r"\[(.+)\]\n(.+)", text.decode()))


def test_wheel_has_a_licence_and_metadata(wheel: zipfile.ZipFile) -> None:
    licence = (ROOT / "LICENSE").read_bytes()
    assert b"Apache License" in licence
    assert metadata_file(wheel, "licenses/LICENSE") == licence
    metadata = message_from_bytes(metadata_file(wheel, "METADATA"))
    assert metadata["Name"] == "orch-sidecar"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert {"cpu", "gpu", "dev"} <= set(metadata.get_all("Provides-Extra") or [])


def test_wheel_registers_each_plugin_under_one_name(wheel: zipfile.ZipFile) -> None:
    assert registered(metadata_file(wheel, "entry_points.txt")) == {
        "console_scripts": "orch = orch_sidecar.cli:main",
        "vllm.general_plugins": "orch = vllm_plugin.register:general_plugin",
        "vllm.endpoint_plugins": "orch = vllm_plugin.register:endpoint_plugin",
    }


def test_wheel_has_the_stat_logger_where_it_is_found_with_a_profile_only(
    wheel: zipfile.ZipFile,
) -> None:
    folder = "vllm_plugin/metadata/orch_stat_logger-1.dist-info"
    assert message_from_bytes(wheel.read(f"{folder}/METADATA"))["Name"] == "orch-stat-logger"
    assert registered(wheel.read(f"{folder}/entry_points.txt")) == {
        "vllm.stat_logger_plugins": "orch = vllm_plugin.register:StatLogger"
    }


def test_registered_functions_exist() -> None:
    """Those of the stat logger derive from a class of vLLM, and are made on demand."""
    for group in ("console_scripts", "vllm.general_plugins", "vllm.endpoint_plugins"):
        [point] = entry_points(group=group, name="orch")
        assert callable(point.load())
