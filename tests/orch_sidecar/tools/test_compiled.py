"""What `make compiled` compiles, and what mypyc would compile into something else."""

from __future__ import annotations

import ast
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orch_sidecar.config.installation import build
from orch_sidecar.tools.compiled import CompilationFailed, compiled, modules, with_constructors
from tests.compiled import ROOT, settings

COMPILED = modules(ROOT, **settings())
# Leaving them waits for nothing.
IMMEDIATE = ("asyncio.timeout(", "self._outline_lock")
LEAVING = (ast.Return, ast.Raise, ast.Continue, ast.Break)
LOOKING_AT_A_TYPE = ("isinstance", "repr", "str", "type")


def waits_that_show_an_exception(tree: ast.AST) -> Iterator[int]:
    """The lines that wait while an exception is handled: mypyc shows it meanwhile to all that
    runs, where a bare `raise` or a `finally` would raise it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Try):
            handled = [*node.finalbody, *(each for one in node.handlers for each in one.body)]
            for each in handled:
                yield from (n.lineno for n in ast.walk(each) if isinstance(n, ast.Await))
        elif isinstance(node, ast.AsyncWith):
            entered = [ast.unparse(item.context_expr) for item in node.items]
            if not all(each.startswith(IMMEDIATE) for each in entered):
                yield node.lineno


def floats_that_may_be_integers(tree: ast.AST) -> Iterator[int]:
    """The lines that show what is annotated as a `float`, or ask for its type: interpreted, it may
    be an integer. A compiled function makes a float of it, and shows 3 as 3.0."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        floats = {
            node.arg if isinstance(node, ast.arg) else ast.unparse(node.target)
            for node in ast.walk(function)
            if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None
            if ast.unparse(node.annotation) in ("float", "float | None")
        }
        for node in ast.walk(function):
            shown: list[ast.expr] = []
            if isinstance(node, ast.FormattedValue) and node.format_spec is None:
                shown = [node.value]
            elif isinstance(node, ast.Call) and ast.unparse(node.func) in LOOKING_AT_A_TYPE:
                shown = node.args[:1]
            yield from (each.lineno for each in shown if ast.unparse(each) in floats)


def sums_on_the_right(tree: ast.AST) -> Iterator[int]:
    """The lines in which an operator has a sum on its right. Beside an integer mypy takes it for
    one of integers, also of floats, of which the compiled module then raises a TypeError."""
    for node in ast.walk(tree):
        right = [node.right] if isinstance(node, ast.BinOp) else getattr(node, "comparators", [])
        for each in right:
            if isinstance(each, ast.Call) and ast.unparse(each.func) == "sum":
                yield each.lineno


def reads_after_none(tree: ast.AST) -> Iterator[int]:
    """The lines that read an attribute after `if it is not None: return`, in the same block. mypy
    takes it for None, whatever happens meanwhile, and the compiled module raises a TypeError."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        block: list[ast.stmt] = body if isinstance(body, list) else []
        for number, each in enumerate(block):
            if (
                not isinstance(each, ast.If)
                or each.orelse
                or not isinstance(each.body[-1], LEAVING)
            ):
                continue
            known = _known_as_none(each.test)
            for later in (found for after in block[number + 1 :] for found in ast.walk(after)):
                if not isinstance(later, ast.Attribute) or not isinstance(later.ctx, ast.Load):
                    continue
                if ast.unparse(later) in known:
                    yield later.lineno


def _known_as_none(test: ast.expr) -> list[str]:
    """The attributes of which a test that fails says that they are None."""
    either = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or) else [test]
    texts = [ast.unparse(each).removesuffix(" is not None") for each in either]
    return [text for text in texts if all(map(str.isidentifier, text.split("."))) and "." in text]


@pytest.mark.parametrize("module", COMPILED)
def test_compiled_module_never_waits_while_it_handles_an_exception(module: str) -> None:
    assert list(waits_that_show_an_exception(ast.parse((ROOT / module).read_text()))) == []


def test_waits_while_an_exception_is_handled_are_found() -> None:
    text = """
async def f():
    try:
        pass
    except OSError:
        await g()
    async with asyncio.timeout(1), a:
        pass
    async with asyncio.timeout(1):
        await g()
"""
    assert list(waits_that_show_an_exception(ast.parse(text))) == [6, 7]


@pytest.mark.parametrize("module", COMPILED)
def test_numbers_are_the_same_in_a_compiled_module(module: str) -> None:
    tree = ast.parse((ROOT / module).read_text())
    assert [*floats_that_may_be_integers(tree), *sums_on_the_right(tree)] == []


@pytest.mark.parametrize("module", COMPILED)
def test_what_was_none_is_not_read_again_in_a_compiled_module(module: str) -> None:
    assert list(reads_after_none(ast.parse((ROOT / module).read_text()))) == []


def test_reads_of_what_was_none_are_found() -> None:
    text = """
async def f(a, b):
    while True:
        if b.c is not None or a.c:
            return
        if a.d is not None:
            print(a.d)
        await g(a)
        a.c = b.c or a.d
"""
    assert list(reads_after_none(ast.parse(text))) == [9]


def test_numbers_that_would_differ_are_found() -> None:
    text = """
def f(a: float, b: float | None, c: int | float, d: list[float]) -> None:
    e: float = g()
    f"{a:g} {c} {d} {g(a)}"
    f"{a}"
    print(b, str(b))
    type(c) is int or type(e) is int
    isinstance(a, int)
    1 + sum(d)
    sum(d) + a > 1
    1 < sum(d)
"""
    tree = ast.parse(text)
    assert sorted(floats_that_may_be_integers(tree)) == [5, 6, 7, 8]
    assert list(sums_on_the_right(tree)) == [9, 11]


def test_way_of_a_request_is_compiled_without_what_is_named_as_interpreted() -> None:
    assert "orch_sidecar/admission/gate.py" in COMPILED
    assert not [name for name in COMPILED if name.endswith("__init__.py")]
    assert not {*COMPILED} & {*settings()["interpreted"]}
    assert build() == "pure"


def test_command_of_a_python_that_is_not_there_is_passed_over(tmp_path: Path) -> None:
    """pyenv has a command for each version, which fails unless that version is chosen."""
    path, venv = tmp_path / "path", tmp_path / "venv"
    for command, body in (
        (path / "python3.11", "exit 127"),
        (path / "python3.12", "exit 0"),
        (path / "python3.13", "exit 127"),
        (venv / "bin" / "python", 'echo "$@"; mkdir -p dist; touch dist/a.whl'),
    ):
        command.parent.mkdir(parents=True, exist_ok=True)
        command.write_text(f"#!/bin/sh\n{body}\n")
        command.chmod(0o755)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (venv / "installed").touch()
    done = subprocess.run(
        ["make", "-f", ROOT / "Makefile", "compiled", f"VENV={venv}"],
        cwd=tmp_path, env={"PATH": f"{path}:/usr/bin:/bin"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    older, built, newer, *wheels = done.stdout.splitlines()
    assert older == "there is no Python 3.11 on this machine: no wheel for it"
    assert f"--python {path / 'python3.12'} wheel" in built  # pip takes no name of a command
    assert newer == "there is no Python 3.13 on this machine: no wheel for it"
    assert wheels == ["dist/a.whl"]


def test_modules_are_compiled_beside_all_that_their_types_come_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the wheel is built, the project is not installed."""
    found: list[str] = []

    def run(*_: Any, cwd: Path, **__: Any) -> subprocess.CompletedProcess[str]:
        found.extend(str(each.relative_to(cwd)) for each in cwd.glob("*/*.py"))
        return subprocess.CompletedProcess((), 1, "refused", "")

    for package in ("orch_sidecar", "vllm_plugin"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "a.py").touch()
    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(CompilationFailed, match="refused"):
        compiled(tmp_path, ["orch_sidecar/a.py"])
    assert sorted(found) == ["orch_sidecar/a.py", "vllm_plugin/a.py"]


def test_name_that_is_not_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "room").mkdir()
    with pytest.raises(CompilationFailed, match=r"names room/gone\.py, attic, which is not there"):
        modules(tmp_path, ["room", "attic"], ["room/gone.py"])


def test_constructors_of_dataclasses_are_written_out_as_dataclass_makes_them() -> None:
    text = """
from dataclasses import dataclass, field

@dataclass(slots=True)
class A:
    x: int
    y: str = "a"
    z: float = field(default=1.0, compare=False)

    def double(self) -> int:
        return 2 * self.x

@dataclass(slots=True)
class B:
    made: list[int] = field(default_factory=list)

@dataclass(frozen=True, slots=True)
class C:
    x: int
"""
    interpreted: dict[str, Any] = {"__name__": __name__}
    written: dict[str, Any] = {"__name__": __name__}
    source = with_constructors(text)
    assert source.count("def __init__(self, x: int, y: str = 'a', z: float = 1.0) -> None:") == 1
    assert source.count("__init__") == 1
    exec(text, interpreted)
    exec(source, written)
    for given in ({"x": 1}, {"x": 1, "y": "b", "z": 2.0}):
        assert repr(written["A"](**given)) == repr(interpreted["A"](**given))
    assert written["A"](1, z=3.0) == written["A"](1)
    assert written["A"](4).double() == 8
    assert written["B"]().made == []
