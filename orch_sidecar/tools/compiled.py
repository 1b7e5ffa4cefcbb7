"""Builds the wheel with a request's way compiled by mypyc, where that is asked for.

The pure wheel is what `pip install .` makes. With `HATCH_BUILD_HOOK_ENABLE_CUSTOM=1` this hook of
hatchling compiles the modules that `pyproject.toml` names, for the interpreter that builds, and
adds them beside their sources. Both wheels have the same sources and the same version, and
`orch --version` says which of them runs.
"""

from __future__ import annotations

import ast
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

OPTIMIZATION: Final = "1"
"""Of the C compiler. With 3 a request executes less than 1 % fewer instructions, and compiling
takes a quarter longer. From 2 on GCC multiplies and adds in one step where the processor can, which
rounds otherwise than Python does."""

_PLAIN: Final = (
    "dataclass(slots=True)",
    "dataclass(slots=True, eq=False)",
    "dataclass(slots=True, unsafe_hash=True)",
)
_INDENT: Final = "    "

_SETUP: Final = """
import json, sys
from mypyc.build import mypycify
from setuptools import setup

level, *modules = json.load(sys.stdin)
extensions = mypycify(
    ["--config-file", "pyproject.toml", *modules], opt_level=level, group_name="orch"
)
setup(name="orch-compiled", packages=[], ext_modules=extensions)
"""


class CompilationFailed(Exception):
    """mypyc or the C compiler refused the modules; the message is theirs."""


class CompiledModules(BuildHookInterface[Any]):
    """Adds the compiled modules to a wheel.

    Its configuration: `rooms`, folders whose modules are compiled; `interpreted`, those that are
    not, each with its reason in a comment.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return  # sources that are edited must be what runs
        root = Path(self.root)
        built = compiled(root, modules(root, self.config["rooms"], self.config["interpreted"]))
        build_data["pure_python"], build_data["infer_tag"] = False, True
        build_data["force_include"] |= {
            str(path): str(path.relative_to(built)) for path in sorted(built.rglob("*.so"))
        }


def modules(root: Path, rooms: Iterable[str], interpreted: Iterable[str]) -> list[str]:
    """Returns the modules to compile, relative to the root of the project.

    Raises:
        CompilationFailed: a room or an interpreted module is not there.
    """
    found = {str(path.relative_to(root)) for room in rooms for path in (root / room).rglob("*.py")}
    if missing := [
        *(set(interpreted) - found),
        *(room for room in rooms if not (root / room).is_dir()),
    ]:
        raise CompilationFailed(f"pyproject.toml names {', '.join(missing)}, which is not there")
    return sorted(path for path in found - set(interpreted) if not path.endswith("/__init__.py"))


def compiled(root: Path, names: list[str]) -> Path:
    """Compiles modules, and returns the folder with them, laid out as the packages are.

    It is kept below `.cache` until the sources, Python or mypyc change.
    """
    key = hashlib.sha256(json.dumps([sys.version, installed("mypy"), OPTIMIZATION, names]).encode())
    for path in sorted((root / "orch_sidecar").rglob("*.py")):
        key.update(path.read_bytes())
    folder = root / ".cache" / "compiled" / key.hexdigest()[:16]
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    (folder.parent / ".gitignore").write_text("*\n")
    with tempfile.TemporaryDirectory(dir=folder.parent) as made:
        _build(root, names, Path(made))
        Path(made, "lib").rename(folder)
    return folder


def _build(root: Path, names: list[str], made: Path) -> None:
    """Compiles in a folder apart, since both mypyc and setuptools write beside what they read."""
    (made / "lib").mkdir()
    shutil.copytree(root / "orch_sidecar", made / "orch_sidecar")
    for path in (made / name for name in names):
        path.write_text(with_constructors(path.read_text("utf-8")), "utf-8")
    for beside in ("vllm_plugin", "pyproject.toml"):  # read by mypy, for the types that are used
        (made / beside).symlink_to(root / beside)
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", _SETUP, "build_ext", "--build-lib", "lib", "--build-temp", "tmp"],
        input=json.dumps([OPTIMIZATION, *names]),
        cwd=made,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise CompilationFailed(done.stdout + done.stderr)


def with_constructors(source: str) -> str:
    """Writes out the constructors of the dataclasses in a source that are not frozen.

    The one that `dataclass` makes would be interpreted, and take ten times as long. Lines after
    such a class have other numbers in the traceback of a compiled module.
    """
    lines = source.splitlines(keepends=True)
    classes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)]
    for node in sorted(classes, key=lambda each: -each.lineno):
        if not node.bases and any(ast.unparse(each) in _PLAIN for each in node.decorator_list):
            lines[node.end_lineno : node.end_lineno] = _constructor(node)
    return "".join(lines)


def _constructor(dataclass: ast.ClassDef) -> list[str]:
    """Returns the lines of a dataclass's constructor; none if it has one, or calls a factory."""
    parameters, values = [], []
    for each in dataclass.body:
        if isinstance(each, ast.FunctionDef) and each.name in ("__init__", "__post_init__"):
            return []
        if isinstance(each, ast.AnnAssign):
            default, name = each.value, ast.unparse(each.target)
            if isinstance(default, ast.Call) and ast.unparse(default.func) == "field":
                given = {word.arg: word.value for word in default.keywords}
                default = given.get("default")
                if "default_factory" in given:
                    return []
            parameter = f"{name}: {ast.unparse(each.annotation)}"
            parameters.append(parameter + (f" = {ast.unparse(default)}" if default else ""))
            values.append(f"{_INDENT * 2}self.{name} = {name}\n")
    return [f"{_INDENT}def __init__(self, {', '.join(parameters)}) -> None:\n", *values]
