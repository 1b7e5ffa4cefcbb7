"""Lists the symbols of a module from its source, without importing or executing it.

The symbols of a module map "" to the names at the top level, `Class` to its fields and methods,
and `Class.method` or `function` to its parameters. A name that is set to a string also appears as
`NAME='value'`. After the parameters of a function follow the strings that its body passes by
keyword, `keyword='value'`, and the attributes that it sets, `object.attribute`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

Symbols = Mapping[str, list[str]]


def parse_symbols(source: str) -> dict[str, list[str]]:
    """Returns the symbols of a module. Raises SyntaxError if the source is not valid Python."""
    found: dict[str, list[str]] = {"": []}

    def visit(body: list[ast.stmt], prefix: str) -> None:
        names = found.setdefault(prefix, [])
        for node in body:
            if isinstance(node, ast.ClassDef):
                names.append(node.name)
                visit(node.body, f"{prefix}.{node.name}" if prefix else node.name)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                names.append(node.name)
                key = f"{prefix}.{node.name}" if prefix else node.name
                found[key] = [*_parameters(node.args), *_passed_and_set(node)]
                if node.name == "__init__":
                    names.extend(_assigned_to_self(node))
            elif isinstance(node, ast.AnnAssign):
                names.extend(_assigned([node.target], node.value))
            elif isinstance(node, ast.Assign):
                names.extend(_assigned(node.targets, node.value))
            elif isinstance(node, ast.ImportFrom):
                names.extend(each.asname or each.name for each in node.names)
            elif isinstance(node, ast.If):
                visit([*node.body, *node.orelse], prefix)  # such as `if TYPE_CHECKING:`

    visit(ast.parse(source).body, "")
    return found


def _parameters(arguments: ast.arguments) -> list[str]:
    return [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]


def _assigned(targets: list[ast.expr], value: ast.expr | None) -> Iterator[str]:
    for target in targets:
        if isinstance(target, ast.Name):
            yield target.id
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield f"{target.id}={value.value!r}"


def _passed_and_set(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    for node in ast.walk(function):
        if isinstance(node, ast.keyword) and isinstance(node.value, ast.Constant):
            if isinstance(node.value.value, str):
                yield f"{node.arg}={node.value.value!r}"
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield ast.unparse(node)


def _assigned_to_self(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    for node in ast.walk(function):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and isinstance(node.value, ast.Name)
            and node.value.id == "self"
        ):
            yield node.attr


def symbols_below(root: Path) -> Callable[[str], Symbols | None]:
    """Returns a function from a file below `root` to its symbols, None if it does not exist."""
    known: dict[str, Symbols | None] = {}

    def symbols_of(file: str) -> Symbols | None:
        if file not in known:
            path = root / file
            known[file] = (
                parse_symbols(path.read_text(encoding="utf-8")) if path.is_file() else None
            )
        return known[file]

    return symbols_of
