"""Writes what is generated of the manifests: `make k8s`, or `python k8s/generate.py`.

- the wheel of this tree, its unpacker and the profiles, as ConfigMaps;
- the annotation `orch/wheel` of the Deployments, which rolls their pods when the wheel changes;
- all of k8s/cpu/, from k8s/.

Everything else is written by hand and left as it is.

Why the wheel comes in parts: `kubectl apply` writes each object whole into an annotation of that
object, and annotations may have 256 KiB together.
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parent
if __name__ == "__main__":  # as a script: the folder above is not on the path
    sys.path.insert(0, str(ROOT))

from k8s.cpu_variant import variant  # noqa: E402 # after the path

PARTS: Final = 5
# Bytes of one part: a ConfigMap of 4/3 of it and some labels, with a reserve below 256 KiB.
PART_LIMIT: Final = 176_000
_EPOCH: Final = "1580601600"  # timestamps in the wheel; hatchling's own default
_STAMP: Final = re.compile(r'^( +orch/wheel: )"[^"]*"$', re.MULTILINE)
_HEAD: Final = "# Written by k8s/generate.py: `make k8s`.\n"


class TooLarge(ValueError):
    """The wheel does not fit the ConfigMaps that the Deployments name."""


def build() -> bytes:
    """The wheel of this tree, from its sources."""
    with tempfile.TemporaryDirectory() as out:
        subprocess.run(  # noqa: S603 # our own tree, by the interpreter that runs this
            [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out],
            cwd=ROOT,
            env=os.environ | {"SOURCE_DATE_EPOCH": _EPOCH},
            check=True,
            stdout=subprocess.DEVNULL,
        )
        [path] = Path(out).glob("*.whl")
        return path.read_bytes()


def contents(wheel: bytes) -> dict[str, bytes]:
    """What a wheel brings, without what is said of its making, and without the README.

    Compressed bytes differ between versions of zlib, WHEEL and RECORD between those of hatchling.
    """
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        making = re.compile(r"[^/]+\.dist-info/(WHEEL|RECORD)")
        names = [name for name in archive.namelist() if not making.fullmatch(name)]
        brought = {name: archive.read(name) for name in names}
    for name in names:
        if name.endswith(".dist-info/METADATA"):
            brought[name] = brought[name].partition(b"\n\n")[0]  # the description is after it
    return brought


def digest(brought: Mapping[str, bytes]) -> str:
    """16 hexadecimal digits that are others when anything of the contents is."""
    sums = (f"{name} {hashlib.sha256(brought[name]).hexdigest()}" for name in sorted(brought))
    return hashlib.sha256("\n".join(sums).encode()).hexdigest()[:16]


def laid_down(folder: Path = HERE) -> bytes | None:
    """The wheel that the manifests hold, or None if they hold none."""
    paths = [folder / _part_file(number) for number in range(PARTS)]
    if not all(path.exists() for path in paths):
        return None
    maps = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in paths]
    return b"".join(
        base64.b64decode(each["binaryData"][f"wheel.{number}"]) for number, each in enumerate(maps)
    )


def wanted() -> bytes:
    """The wheel that the manifests should hold: the one that they do, if it brings the same."""
    built, there = build(), laid_down()
    return there if there is not None and contents(there) == contents(built) else built


def generated(wheel: bytes) -> Iterator[tuple[str, str]]:
    """Name and text of every generated file, below k8s/. Raises TooLarge, cpu_variant.NotFound."""
    texts = dict(_config_maps(wheel))
    stamp = digest(contents(wheel))
    for path in sorted(HERE.glob("*.yaml")):
        if path.name not in texts:
            text = path.read_text(encoding="utf-8")
            texts[path.name] = _STAMP.sub(rf'\g<1>"{stamp}"', text)
    for name, text in sorted(texts.items()):
        yield name, text
        yield f"cpu/{name}", variant(name, text)


def _config_maps(wheel: bytes) -> Iterator[tuple[str, str]]:
    size = -(-len(wheel) // PARTS)
    if size > PART_LIMIT:
        raise TooLarge(
            f"the wheel has {len(wheel)} bytes, {PARTS} parts hold {PARTS * PART_LIMIT}: raise "
            "PARTS, and name the new ConfigMaps in the volume `wheel` of the Deployments"
        )
    unpack = (HERE / "unpack.py").read_text(encoding="utf-8")
    checksum = f"{hashlib.sha256(wheel).hexdigest()}\n"
    data = {"sha256": checksum, "unpack.py": unpack}
    yield "10-wheel.yaml", _config_map("orch-wheel", "wheel", data=data)
    for number in range(PARTS):
        part = base64.b64encode(wheel[number * size : (number + 1) * size]).decode()
        text = _config_map(f"orch-wheel-{number}", "wheel", binaryData={f"wheel.{number}": part})
        yield _part_file(number), text
    profiles = {
        path.name: _strict(path.read_text(encoding="utf-8"))
        for path in sorted((ROOT / "profiles").glob("*.yaml"))
    }
    yield "12-profiles.yaml", _config_map("orch-profiles", "profiles", data=profiles)


def _strict(profile: str) -> str:
    """The text of a profile whose engine takes requests by the sidecar beside it only."""
    before, key, after = profile.partition("\nengine:\n")
    assert key, "a profile has engine arguments"
    return f"{before}\nunleased: refuse{key}{after}"


def _part_file(number: int) -> str:
    return f"11-wheel-{number}.yaml"


def _config_map(name: str, component: str, **content: Mapping[str, str]) -> str:
    labels = {
        "name": "orch",
        "instance": "orch",
        "version": project_version(),
        "component": component,
        "part-of": "orch",
        "managed-by": "kubectl",
    }
    document = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": name,
            "namespace": "orch",
            "labels": {f"app.kubernetes.io/{key}": value for key, value in labels.items()},
        },
        **content,
    }
    return _HEAD + yaml.dump(document, Dumper=_Blocks, sort_keys=False, width=2**31)


def project_version() -> str:
    """The version of the project, from pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project["version"])


class _Blocks(yaml.SafeDumper):
    """Texts of several lines as such."""


def _text(dumper: yaml.SafeDumper, text: str) -> Any:
    return dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
    )


_Blocks.add_representer(str, _text)


def main() -> None:
    """Writes what differs, removes what k8s/cpu/ no longer has, and says which."""
    texts = dict(generated(wanted()))
    for path in (HERE / "cpu").glob("*.yaml"):
        if f"cpu/{path.name}" not in texts:
            path.unlink()
            print(f"removed k8s/cpu/{path.name}")
    for name, text in texts.items():
        path = HERE / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"wrote k8s/{name}")


if __name__ == "__main__":
    main()
