"""Renders the manifests: `make k8s`, or `python -m k8s.render` (`--sizes` prints sizes of code).

- k8s/base/runtime: the code that pods run, packed from this tree;
- k8s/base/profiles: the profiles, with the rule that engines take requests by their sidecar only;
- k8s/*.yaml: what `kubectl kustomize k8s/overlays/gpu` prints, one object per file.

Everything else is written by hand. Nothing is read from the network.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parent
DEFAULT: Final = "overlays/gpu"
# `kubectl apply` writes each object whole into an annotation of that object, and annotations may
# have 256 KiB together: 180 000 bytes before base64. A third of that is kept for growth.
ARCHIVE_LIMIT: Final = 120_000
_COMPRESSION: Final = 9
# Code as it is written, and the page that the sidecar serves. Modules that `make compiled` made are
# of one Python and one processor.
_SUFFIXES: Final = frozenset({".py", ".typed", ".html", ".css", ".js"})
# Folders by which Python finds entry points.
_METADATA: Final = ".dist-info"
# Packages of the sidecar that are in another archive than the rest of it.
_APART: Final = {
    "admission": (
        "orch_sidecar/admission/",
        "orch_sidecar/engine_state/",
        "orch_sidecar/observability/",
    ),
    "serving": (
        "orch_sidecar/coalescing/",
        "orch_sidecar/proxy/",
        "orch_sidecar/splitting/",
        "orch_sidecar/wire/",
    ),
}
# Batches need libraries that the pods of these archives lack.
_NOT_IN_PODS: Final = "orch_sidecar/batches/"
# Commands for people stay out of pods; the engine's preStop hook runs `orch drain`.
_TOOLS: Final = "orch_sidecar/tools/"
_TOOLS_IN_PODS: Final = frozenset({f"{_TOOLS}__init__.py", f"{_TOOLS}drain.py"})
_REFUSE: Final = """
# In these pods every request comes by the sidecar.
unleased: refuse
"""
BINARY: Final = re.compile(r"^(  [\w.]+\.bz2:) \|\n((?:    \S+\n)+)", re.MULTILINE)
_HEAD: Final = (
    f"# Rendered from {DEFAULT} by `make k8s`: the reasons stand in base/ and installations/.\n"
)


class TooLarge(ValueError):
    """An archive does not fit into a ConfigMap that is applied by a client."""


def runtime() -> dict[str, dict[str, bytes]]:
    """Returns the archives of the code that pods run: their members by path."""
    sidecar = {path: data for path, data in _package("orch_sidecar") if _in_pods(path)}
    apart = {
        name: {path: sidecar.pop(path) for path in [*sidecar] if path.startswith(packages)}
        for name, packages in _APART.items()
    }
    plugin = dict(_package("vllm_plugin"))
    for path in sorted((ROOT / "profiles").glob("*.yaml")):
        plugin[f"vllm_plugin/profiles/{path.name}"] = path.read_bytes()
    return {"sidecar": sidecar, **apart, "plugin": plugin | _metadata()}


def _package(name: str) -> Iterator[tuple[str, bytes]]:
    for path in sorted((ROOT / name).rglob("*")):
        if path.is_file() and (path.suffix in _SUFFIXES or path.parent.suffix == _METADATA):
            yield str(path.relative_to(ROOT)), path.read_bytes()


def _in_pods(path: str) -> bool:
    return not path.startswith((_TOOLS, _NOT_IN_PODS)) or path in _TOOLS_IN_PODS


def _metadata() -> dict[str, bytes]:
    """Returns the metadata by which Python finds the entry points that vLLM loads."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    folder = f"{project['name'].replace('-', '_')}-{project['version']}{_METADATA}"
    metadata = f"Metadata-Version: 2.4\nName: {project['name']}\nVersion: {project['version']}\n"
    groups = {"console_scripts": project["scripts"], **project["entry-points"]}
    entry_points = "\n".join(
        f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in entries.items())
        for group, entries in groups.items()
    )
    return {
        f"{folder}/METADATA": metadata.encode(),
        f"{folder}/entry_points.txt": entry_points.encode(),
    }


def pack(members: Mapping[str, bytes]) -> bytes:
    """Packs members into a .tar.bz2 that is the same wherever it is made. Raises TooLarge."""
    packed = io.BytesIO()
    with tarfile.open(
        fileobj=packed, mode="w:bz2", format=tarfile.USTAR_FORMAT, compresslevel=_COMPRESSION
    ) as archive:
        for path, data in sorted(members.items()):
            entry = tarfile.TarInfo(path)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    size = len(packed.getvalue())
    if size > ARCHIVE_LIMIT:
        first = min(members).partition("/")[0]
        raise TooLarge(
            f"the archive of {first} has {size} bytes, {ARCHIVE_LIMIT} are allowed: move "
            "some of its packages into an archive of their own, in k8s/render.py, in "
            "k8s/base/kustomization.yaml and in the volume `code` of the Deployments"
        )
    return packed.getvalue()


def unpacked(archive: bytes) -> dict[str, bytes]:
    """Returns the members of an archive by path."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        files = {member.name: opened.extractfile(member) for member in opened}
        return {name: file.read() for name, file in files.items() if file is not None}


def inputs() -> dict[Path, bytes]:
    """Returns the generated files below k8s/base.

    An archive that holds the right members is kept as it is: releases of bzip2 may pack otherwise.
    """
    found: dict[Path, bytes] = {}
    for name, members in runtime().items():
        path = HERE / "base" / "runtime" / f"{name}.tar.bz2"
        there = path.read_bytes() if path.exists() else b""
        found[path] = there if there and unpacked(there) == members else pack(members)
    for path in sorted((ROOT / "profiles").glob("*.yaml")):
        found[HERE / "base" / "profiles" / path.name] = path.read_bytes() + _REFUSE.encode()
    return found


def kustomize(folder: Path) -> str:
    """Returns what `kubectl kustomize` prints for a folder.

    Raises CalledProcessError with kubectl's message on standard error.
    """
    kubectl = Path(sys.executable).with_name("kubectl")  # of the package that the project pins
    command = [str(kubectl), "kustomize", str(folder)]
    found = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)  # noqa: S603
    return found.stdout


def documents(rendered: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the text and the content of each object in a stream of YAML documents."""
    for text in re.split(r"^---\n", rendered, flags=re.MULTILINE):
        if text.strip():
            yield text, yaml.load(text, Loader=yaml.CSafeLoader)


def unhashed(body: Mapping[str, Any]) -> str:
    """Returns the name of an object without the hash of its contents."""
    name = str(body["metadata"]["name"])
    return re.sub(r"-[a-z0-9]{10}$", "", name) if body.get("immutable") else name


def flat() -> dict[str, str]:
    """Returns the flat files by name. The namespace is first, because kubectl applies in order."""
    files: dict[str, str] = {}
    for text, body in documents(kustomize(HERE / DEFAULT)):
        name = unhashed(body)  # its file keeps its name when its contents change
        kind = body["kind"].lower()
        file = "00-namespace.yaml" if kind == "namespace" else f"{kind}-{name}.yaml"
        assert file not in files, f"two objects would be k8s/{file}"
        files[file] = _HEAD + BINARY.sub(_on_one_line, text)
    return files


def _on_one_line(found: re.Match[str]) -> str:
    """Joins lines of base64, which are for no reader, into one."""
    return found[1] + " " + "".join(found[2].split()) + "\n"


def sizes() -> Iterator[str]:
    """Yields what the page on code in manifests compares: the code of pods, packed and as it is."""
    members = [item for archive in runtime().values() for item in archive.items()]
    plain = sum(len(data) for _, data in members)
    lines = sum(data.count(b"\n") for _, data in members)
    yield f"source: {len(members)} files, {lines} lines, {plain} bytes"
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED, compresslevel=_COMPRESSION) as wheel:
        for path, data in members:
            wheel.writestr(path, data)
    packed = {name: len(pack(each)) for name, each in runtime().items()}
    packed |= {"both": sum(packed.values()), "all as a wheel": len(zipped.getvalue())}
    for name, size in packed.items():
        yield f"{name}: {size} bytes, {-(-size // 3) * 4} in base64"


def main() -> None:
    """Writes what differs, removes flat files of objects that are gone, and prints which."""
    if sys.argv[1:] == ["--sizes"]:
        print("\n".join(sizes()))
        return
    for path, data in inputs().items():
        _write(path, data)
    files = flat()
    for path in HERE.glob("*.yaml"):
        if path.name not in files:
            path.unlink()
            print(f"removed k8s/{path.name}")
    for name, text in files.items():
        _write(HERE / name, text.encode())


def _write(path: Path, data: bytes) -> None:
    if not path.exists() or path.read_bytes() != data:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
