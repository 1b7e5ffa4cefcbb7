"""Changes functions in small ways, and prints the changes that no test notices.

    python -m tests.mutants 50 orch_sidecar/auth -- tests/orch_sidecar/auth

runs the tests once and sees which places of these modules each of them reaches. Then it draws so
many places by a fixed seed, changes each in a process of its own, and runs the tests that reach it.
A change that survives makes no difference that counts, or a test is missing. Programs that tests
start, and what runs when a module is imported, are not changed.
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
# With a change a test may wait for ever: it is noticed after so many times what all of them took.
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
        self.tree = ast.fix_missing_locations(self.visit(ast.parse(Path(path).read_text())))

    def visit(self, node: ast.AST) -> Any:
        inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        self._depth += inside
        new = changed(node) if self._depth else None
        number, self._count = self._count, self._count + (new is not None)
        if new is not None and number == self._wanted:
            self.change = f"{self.path}:{node.lineno}: {ast.unparse(node)}  ->  {ast.unparse(new)}"  # type: ignore[attr-defined]
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


def survives(change: Module, items: list[pytest.Item], within_s: float) -> bool:
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(int(within_s))
            put(change)
            os._exit(any(map(fails, items)))
        finally:
            os._exit(2)
    return os.waitpid(child, 0)[1] == 0


class Mutants:
    """Runs the tests that pytest has collected, and then those that reach each change."""

    def __init__(self, count: int, code: list[str]) -> None:
        self._count = count
        self._files = [
            str(file)
            for path in map(Path, code)
            for file in (sorted(path.resolve().rglob("*.py")) or [path.resolve()])
        ]

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        reached: set[tuple[str, int]] = set()
        setattr(builtins, MARK, reached.add)
        put(*map(Module, self._files))
        tests: dict[tuple[str, int], list[tuple[float, int]]] = defaultdict(list)
        for number, item in enumerate(session.items):
            began = time.monotonic()
            assert not fails(item), f"{item.nodeid} fails without a change"
            for place in reached:
                tests[place].append((time.monotonic() - began, number))
            reached.clear()
        put(*(Module(file, -1) for file in self._files))
        drawn = random.Random(SEED).sample(sorted(tests), min(self._count, len(tests)))
        for place in sorted(drawn):
            change, reaching = Module(*place), sorted(tests[place])
            items = [session.items[number] for _, number in reaching]
            if survives(change, items, 10 + PATIENCE * sum(took_s for took_s, _ in reaching)):
                print(change.change, flush=True)
        print(f"changed {len(drawn)} of {len(tests)} places that the tests reach")
        return True


if __name__ == "__main__":
    split = sys.argv.index("--")
    with tempfile.TemporaryDirectory() as examples:  # those of changed code are of no use later
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = examples
        flags = ["-q", "-p", "no:cacheprovider", "--timeout=0", "--hypothesis-seed=0"]
        plugin = Mutants(int(sys.argv[1]), sys.argv[2:split])
        pytest.main([*flags, *sys.argv[split + 1 :]], plugins=[plugin])
