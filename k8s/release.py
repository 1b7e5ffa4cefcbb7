"""Writes what a release has for Kubernetes: `python -m k8s.release FOLDER`.

- FOLDER/orch-NAME.yaml: each overlay of k8s/overlays, as `kubectl kustomize` prints it;
- with `--image sidecar=REPOSITORY@DIGEST --image plugin=REPOSITORY@DIGEST` also
  FOLDER/orch-gpu-images.yaml, which runs these images instead of the code in ConfigMaps;
- FOLDER/orch-VERSION.tgz: the Helm chart.

`kubectl apply -f` takes each of the manifests, `helm install` the chart.

The chart is made from the same components: its values are the parameters. Kustomize renders the
installation with a marker in place of each parameter, and a marker becomes the template of its
value. What a parameter `none` leaves out is found by rendering that: the lines that are missing
then are conditional. Nothing of the chart is written by hand but the frame below.
"""

from __future__ import annotations

import argparse
import difflib
import io
import json
import os
import re
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from k8s import render

IMAGES: Final = ("sidecar", "plugin")
PARAMETERS: Final = render.HERE / "base" / "parameters" / "parameters.env"
# Of components that change pods: they have no place in templates of values.
LEFT_OUT: Final = frozenset({"MODEL_CLAIM", "MODEL_IMAGE", "NODE_CACHE"})
# Objects that are there if a value of this name is true, by kind, or by kind and name.
GROUPS: Final = {
    "Ingress": "ingress",
    "Gateway": "gateway",
    "HTTPRoute": "gateway",
    "PodMonitor": "monitoring",
    "ServiceMonitor": "monitoring",
    "PrometheusRule": "monitoring",
    "ConfigMap/orch-dashboard": "monitoring",
    "ScaledObject": "autoscaling",
}
RESOURCES: Final = ("installations/gpu", "overlays/monitoring", "overlays/autoscaling")
COMPONENTS: Final = ("components/ingress", "components/gateway", "components/parameters")
_NUMBERS: Final = frozenset({"REPLICAS", "MIN_REPLICAS", "MAX_REPLICAS"})
# What takes part in the name of the ConfigMap orch-model, so that a change of it rolls the pods.
_MODEL: Final = re.compile(r"orch-model-[a-z0-9]{10}$", re.MULTILINE)
_HELPERS: Final = """{{- define "orch.model" -}}
orch-model-{{ list %s | join "\\n" | sha256sum | trunc 10 }}
{{- end -}}
"""


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
    version = project_version()
    written = {name: text.encode() for name, text in files.items()}
    written[f"orch-{version}.tgz"] = chart_archive(version)
    for name, data in written.items():
        (options.folder / name).write_bytes(data)
        print(options.folder / name)


def project_version() -> str:
    """Returns the version of the project."""
    text = (render.ROOT / "pyproject.toml").read_text(encoding="utf-8")
    return str(tomllib.loads(text)["project"]["version"])


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


def parameters() -> dict[str, str]:
    """Returns the parameters of the chart with their defaults."""
    lines = PARAMETERS.read_text(encoding="utf-8").splitlines()
    found = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    return {name: value for name, value in found.items() if name not in LEFT_OUT}


def chart_files(version: str) -> dict[str, bytes]:
    """Returns the files of the chart by path."""
    defaults = parameters()
    markers = {
        name: f"{987_650_000 + place}" if name in _NUMBERS else f"value{place}of"
        for place, name in enumerate(defaults)
    }
    made = {
        "Chart.yaml": yaml.safe_dump(
            {"apiVersion": "v2", "name": "orch", "version": version, "appVersion": version}
        ),
        "values.yaml": _values(),
        "values.schema.json": json.dumps(values_schema(), indent=2) + "\n",
    }
    marked = _objects(markers)
    optional = {
        name: _objects(markers | {name: "none"})
        for name in ("NVIDIA_GPUS", "TOLERATION", "TLS_ISSUER", *defaults)
        if defaults[name] == "none" or name in ("NVIDIA_GPUS", "TOLERATION", "TLS_ISSUER")
    }
    optional.pop("NODE_VALUE")  # it goes with NODE_LABEL
    for key, text in marked.items():
        without = {name: each[key] for name, each in optional.items() if each[key] != text}
        made[f"templates/{key.lower().replace('/', '-')}.yaml"] = _template(
            key, text, without, markers
        )
    model = yaml.load(marked["ConfigMap/orch-model"], Loader=yaml.CSafeLoader)["data"]
    made["templates/_helpers.tpl"] = _HELPERS % " ".join(f".Values.{name}" for name in model)
    packed = {path.name: path.read_bytes() for path in render.HERE.glob("base/runtime/*.bz2")}
    archives = {f"files/{name}": data for name, data in packed.items()}
    return {name: text.encode() for name, text in made.items()} | archives


def values_schema() -> dict[str, Any]:
    """Returns the schema of the values: a name that is none of them is refused."""
    value: dict[str, Any] = {"type": ["string", "integer"]}
    groups = {name: {"type": "boolean"} for name in GROUPS.values()}
    return {
        "$schema": "https://json-schema.org/draft-07/schema#",
        "type": "object",
        "additionalProperties": False,
        "properties": dict.fromkeys(parameters(), value) | groups | {"global": {"type": "object"}},
    }


def chart_archive(version: str) -> bytes:
    """Returns the chart as the .tgz that `helm install` takes."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", format=tarfile.USTAR_FORMAT) as opened:
        for path, data in sorted(chart_files(version).items()):
            entry = tarfile.TarInfo(f"orch/{path}")
            entry.size = len(data)
            opened.addfile(entry, io.BytesIO(data))
    return packed.getvalue()


def _values() -> str:
    """Returns the parameters as YAML, with their comments, and the groups after them."""
    lines = []
    for line in PARAMETERS.read_text(encoding="utf-8").splitlines()[3:]:
        name, found, value = line.partition("=")
        if line.startswith("#") or not found:
            lines.append(line)
        elif name not in LEFT_OUT:
            lines.append(f"{name}: {json.dumps(value)}")
    groups = "".join(f"{name}: false\n" for name in dict.fromkeys(GROUPS.values()))
    return "\n".join(
        [*lines, "", "# Further objects: components and overlays of these names.", groups]
    )


def _objects(values: Mapping[str, str]) -> dict[str, str]:
    """Returns the text of each object with these parameters, by kind and name without hash."""
    merged = {"name": "orch-parameters", "namespace": "orch", "behavior": "merge"}
    with tempfile.TemporaryDirectory(dir=render.HERE) as folder:
        own = {
            "resources": [f"../{each}" for each in RESOURCES],
            "components": [f"../{each}" for each in COMPONENTS],
            "configMapGenerator": [{**merged, "literals": [f"{k}={v}" for k, v in values.items()]}],
        }
        (Path(folder) / "kustomization.yaml").write_text(yaml.safe_dump(own), encoding="utf-8")
        found = {}
        for text, body in render.documents(render.kustomize(Path(folder))):
            name = render.unhashed(body)
            found[f"{body['kind']}/{name}"] = _MODEL.sub("orch-model", text)
        return found


def _template(key: str, text: str, without: Mapping[str, str], markers: Mapping[str, str]) -> str:
    """Returns the template of one object.

    `without` has its text with a parameter that is `none`, by that parameter.
    """
    lines = text.splitlines()
    conditions: dict[int, str] = {}
    for name, other in without.items():
        for place in _missing(lines, other.splitlines()):
            conditions[place] = name
    made: list[str] = []
    for place, line in enumerate(lines):
        name = conditions.get(place)
        if name and conditions.get(place - 1) != name:
            made.append(f'{{{{- if ne (toString .Values.{name}) "none" }}}}')
        made.append(_line(line, markers))
        if name and conditions.get(place + 1) != name:
            made.append("{{- end }}")
    body = render.BINARY.sub(_from_file, "\n".join(made) + "\n")
    group = GROUPS.get(key) or GROUPS.get(key.partition("/")[0])
    return f"{{{{- if .Values.{group} }}}}\n{body}{{{{- end }}}}\n" if group else body


def _missing(lines: list[str], other: list[str]) -> Iterator[int]:
    """Yields the places of lines that the other text does not have."""
    for kind, begin, end, _, _ in difflib.SequenceMatcher(
        None, lines, other, autojunk=False
    ).get_opcodes():
        assert kind in ("equal", "delete"), f"`none` changes {lines[begin:end]}"
        yield from range(begin, end) if kind == "delete" else ()


def _line(line: str, markers: Mapping[str, str]) -> str:
    line = line.replace("{{", '{{ "{{" }}')
    for name, marker in markers.items():
        value = f"{{{{ .Values.{name} }}}}"
        if name not in _NUMBERS:
            quoted = f"{{{{ .Values.{name} | toString | quote }}}}"
            line = re.sub(rf'(?<=[:-] )"?{marker}"?$', lambda _, text=quoted: text, line)
        line = line.replace(marker, value)
    line = re.sub(r"^(  namespace: )orch$", r"\1{{ .Release.Namespace }}", line)
    line = line.replace('namespace="orch"', 'namespace="{{ .Release.Namespace }}"')
    line = line.replace("managed-by: kubectl", "managed-by: Helm")
    return re.sub(r"(name: )orch-model$", r'\1{{ include "orch.model" . }}', line)


def _from_file(found: re.Match[str]) -> str:
    name = found[1].strip().rstrip(":")
    return f'{found[1]} {{{{ .Files.Get "files/{name}" | b64enc }}}}\n'


if __name__ == "__main__":
    main()
