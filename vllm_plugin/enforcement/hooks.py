"""Checks that vLLM still has every name that the plugin uses.

The same check serves the running engine (sources of the installed package) and releases that
cannot run here (sources or symbols of their wheels). The names are in `vllm_names`.

The symbols of a module, which is neither imported nor executed, map "" to the names at the top
level, `Class` to its fields and methods, and `Class.method` or `function` to its parameters. A name
that is set to a string also appears as `NAME='value'`. After the parameters of a function follow
the strings that its body passes by keyword, `keyword='value'`, and the attributes that it sets,
`object.attribute`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from vllm_plugin.enforcement.vllm_names import HOOKS, Hook

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


@dataclass(frozen=True, slots=True)
class Finding:
    """A hook, and which of its names are missing; all of them if the place does not exist."""

    hook: Hook
    missing: tuple[str, ...]


def check(symbols_of: Callable[[str], Symbols | None]) -> list[Finding]:
    """Checks every hook. `symbols_of` returns a file's symbols, None if it does not exist."""
    findings = []
    for hook in HOOKS:
        names = (symbols_of(hook.file) or {}).get(hook.what)
        missing = hook.names if names is None else tuple(n for n in hook.names if n not in names)
        findings.append(Finding(hook, missing))
    return findings


def report(version: str, findings: list[Finding]) -> tuple[str, bool]:
    """Returns the text for the log, and whether every hook was found."""
    missing = [finding for finding in findings if finding.missing]
    lines = [f"orch: vLLM {version}: {len(findings) - len(missing)} of {len(findings)} hooks found"]
    for finding in findings:
        place = f"{finding.hook.file}:{finding.hook.what or '(module)'}"
        if finding.missing:
            lines.append(
                f"  MISSING {place}: {', '.join(finding.missing)} "
                f"(needed for {finding.hook.needed_for})"
            )
        else:
            lines.append(f"  found {place} ({finding.hook.needed_for})")
    return "\n".join(lines), not missing
