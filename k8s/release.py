"""Writes what a release has for Kubernetes: `python -m k8s.release FOLDER`.

- FOLDER/orch-NAME.yaml: each overlay of k8s/overlays, as `kubectl kustomize` prints it;
- with `--image sidecar=REPOSITORY@DIGEST --image plugin=REPOSITORY@DIGEST` also
  FOLDER/orch-gpu-images.yaml, which runs these images instead of the code in ConfigMaps;
- FOLDER/orch-VERSION.tgz: the Helm chart (k8s/chart.py).

`kubectl apply -f` takes each of the manifests, `helm install` the chart.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import yaml

from k8s import chart, render

IMAGES: Final = ("sidecar", "plugin")


def manifests() -> dict[str, str]:
    """Returns the rendered overlays by the names of their files."""
    folders = sorted(path.parent for path in render.HERE.glob("overlays/*/kustomization.yaml"))
    return {f"orch-{folder.name}.yaml": render.kustomize(folder) for folder in folders}


def with_images(images: Mapping[str, str]) -> str:
    """Returns the default overlay with the project's own images, each by its digest.

    Raises ValueError for a reference without a digest, or if one of the images is missing.
    """
    if set(images) != set(IMAGES):
        raise ValueError(f"images {', '.join(images)}: {' and '.join(IMAGES)} are needed")
    entries = []
    for name, reference in images.items():
        repository, found, digest = reference.partition("@")
        if not found or not digest.startswith("sha256:"):
            raise ValueError(f"{reference} has no digest: a tag may be moved")
        old = f"registry.example.com/orch-{name}"
        entries.append({"name": old, "newName": repository, "digest": digest})
    with tempfile.TemporaryDirectory() as folder:
        own = {
            "resources": [os.path.relpath(render.HERE / render.DEFAULT, folder)],
            "components": [os.path.relpath(render.HERE / "components" / "images", folder)],
            "images": entries,
        }
        (Path(folder) / "kustomization.yaml").write_text(yaml.safe_dump(own), encoding="utf-8")
        return render.kustomize(Path(folder))


def main() -> None:
    """Writes the files and prints their names."""
    parser = argparse.ArgumentParser(prog="python -m k8s.release")
    parser.add_argument("folder", type=Path, help="where the files are written")
    parser.add_argument("--image", action="append", default=[], metavar="NAME=REPOSITORY@DIGEST")
    options = parser.parse_args()
    files = manifests()
    if options.image:
        images = dict(each.split("=", 1) for each in options.image)
        files["orch-gpu-images.yaml"] = with_images(images)
    options.folder.mkdir(parents=True, exist_ok=True)
    version = chart.project_version()
    written = {name: text.encode() for name, text in files.items()}
    written[f"orch-{version}.tgz"] = chart.archive(version)
    for name, data in written.items():
        (options.folder / name).write_bytes(data)
        print(options.folder / name)


if __name__ == "__main__":
    main()
