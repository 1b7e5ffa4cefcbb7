"""Changes functions in small ways, and prints the changes that no test notices.

    python -m tests.mutants 50 orch_sidecar/auth -- tests/orch_sidecar/auth

runs the tests once and sees which places of these modules each of them reaches. Then it draws so
many places by a fixed seed, changes each in a process of its own, and runs the tests that reach it.
A change that survives makes no difference that counts, or a test is missing. Programs that tests
start, and what runs when a module is imported, are not changed.

    python -m tests.mutants 50 orch_sidecar/auth/keys.py:120 -- tests/integration/test_keys.py

changes this line only: whether other tests notice what survived, or a new one does.
"""

from __future__ import annotations

import ast
import builtins
import functools
import gc
import os
import random
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Final

import pytest
from _pytest.runner import runtestprotocol

SEED: Final = 7
MARK: Final = "__place_is_reached__"
# With a change a test may wait for ever: it is noticed after so many times what it took without.
PATIENCE: Final = 20

OPPOSITES: Final[dict[type[ast.AST], Any]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div,
}  # fmt: skip


def changed(node: ast.AST) -> Any:
    """Returns what is put in the place of a node, or None where nothing is."""
    match node:
        case ast.Compare(left, [operator], right) if type(operator) in OPPOSITES:
            return ast.Compare(left, [OPPOSITES[type(operator)]()], right)
        case ast.BinOp(left, operator, right) if type(operator) in OPPOSITES:
            return ast.BinOp(left, OPPOSITES[type(operator)](), right)
        case ast.BoolOp(operator, values):
            return ast.BoolOp(OPPOSITES[type(operator)](), values)
        case ast.UnaryOp(ast.Not(), operand):
            return operand
        case ast.IfExp(test, body, orelse):
            return ast.IfExp(test, orelse, body)
        case ast.Constant(bool() as value):
            return ast.Constant(not value)
        case ast.Constant(int() | float() as number):
            return ast.Constant(number + 1)
        case ast.Expr(ast.Call()):  # left out, but for the variables that it closes over
            return ast.If(ast.Constant(value=False), [node], [])
    return None


class Module(ast.NodeTransformer):
    """A module in whose functions every place is marked, or the one that is wanted is changed."""

    def __init__(self, path: str, wanted: int | None = None) -> None:
        self.path, self._wanted = path, wanted
        self._count = self._depth = 0
        self.change = ""
        self.lines: list[str] = []  # of each place
        self.tree = ast.fix_missing_locations(self.visit(ast.parse(Path(path).read_text())))

    def visit(self, node: ast.AST) -> Any:
        inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        self._depth += inside
        new = changed(node) if self._depth else None
        number, self._count = self._count, self._count + (new is not None)
        if new is not None:
            line = str(node.lineno)  # type: ignore[attr-defined]
            self.lines.append(line)
        if new is not None and number == self._wanted:
            place = f"{os.path.relpath(self.path)}:{line}"
            self.change = f"{place}: {ast.unparse(node)}  ->  {ast.unparse(new)}"
            return new
        if not isinstance(node, ast.pattern | ast.arguments):
            self.generic_visit(node)
        self._depth -= inside
        if new is None or self._wanted is not None:
            return node
        mark: Any = ast.parse(f"{MARK}(({self.path!r}, {number}))", mode="eval").body
        if isinstance(node, ast.Expr):
            return [ast.Expr(mark), node]
        both: list[Any] = [mark, node]
        return ast.Subscript(ast.Tuple(both, ast.Load()), ast.Constant(1), ast.Load())


def put(*modules: Module) -> None:
    """Gives the functions that exist the code of these modules."""
    codes = {
        key: code for each in modules for key, code in _codes(compile(each.tree, each.path, "exec"))
    }
    gc.unfreeze()  # what tests/conftest.py or a test froze is unknown to gc.get_objects()
    for each in gc.get_objects():
        if isinstance(each, FunctionType):
            each.__code__ = codes.get(_key(each.__code__), each.__code__)
        elif isinstance(each, functools._lru_cache_wrapper):
            each.cache_clear()


def _key(code: CodeType) -> tuple[str, str, int]:
    return code.co_filename, code.co_qualname, code.co_firstlineno


def _codes(code: CodeType) -> Iterator[tuple[tuple[str, str, int], CodeType]]:
    yield _key(code), code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _codes(inner)


def fails(item: pytest.Item) -> bool:
    return any(each.failed for each in runtestprotocol(item, log=False, nextitem=None))


def survives(change: Module, items: list[tuple[float, pytest.Item]]) -> bool:
    """Whether no test fails. `items`: with the seconds that each took without the change."""
    child = os.fork()
    if child == 0:
        try:
            put(change)
            for took_s, item in items:
                signal.alarm(10 + int(PATIENCE * took_s))
                if fails(item):
                    os._exit(1)
            os._exit(0)
        finally:
            os._exit(2)
    return os.waitpid(child, 0)[1] == 0


class Mutants:
    """Runs the tests that pytest has collected, and then those that reach each change."""

    def __init__(self, count: int, code: list[str]) -> None:
        self._count = count
        self._files: dict[str, set[str]] = defaultdict(set)  # and their lines; none: all
        for each in code:
            name, _, line = each.partition(":")
            path = Path(name).resolve()
            for file in sorted(path.rglob("*.py")) or [path]:
                self._files[str(file)] |= {line} - {""}

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        reached: set[tuple[str, int]] = set()
        setattr(builtins, MARK, reached.add)
        modules = {file: Module(file) for file in self._files}
        put(*modules.values())
        tests: dict[tuple[str, int], list[tuple[float, int]]] = defaultdict(list)
        for number, item in enumerate(session.items):
            began = time.monotonic()
            if fails(item):
                print(f"{item.nodeid} fails without a change, too, and is left out", flush=True)
                reached.clear()
            for path, place in reached:
                if modules[path].lines[place] in self._files[path] or not self._files[path]:
                    tests[path, place].append((time.monotonic() - began, number))
            reached.clear()
        put(*(Module(file, -1) for file in self._files))
        drawn = random.Random(SEED).sample(sorted(tests), min(self._count, len(tests)))
        survivors = 0
        for key in sorted(drawn):
            change = Module(*key)
            reaching = [(took_s, session.items[number]) for took_s, number in sorted(tests[key])]
            if survives(change, reaching):
                survivors += 1
                print(change.change, flush=True)
        print(f"{survivors} of {len(drawn)} changes survive; the tests reach {len(tests)} places")
        return True


if __name__ == "__main__":
    split = sys.argv.index("--")
    with tempfile.TemporaryDirectory() as examples:  # those of changed code are of no use later
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = examples
        flags = ["-q", "-p", "no:cacheprovider", "--timeout=0", "--hypothesis-seed=0"]
        plugin = Mutants(int(sys.argv[1]), sys.argv[2:split])
        pytest.main([*flags, *sys.argv[split + 1 :]], plugins=[plugin])
