"""The code that pods unpack works there: with the image's Python and nothing of this tree."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

from tests.environments import without_this_project
from tests.k8s.objects import DEFAULT, ROOT, named, pod_spec


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
