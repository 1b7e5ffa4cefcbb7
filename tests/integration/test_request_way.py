"""The way of a request stays short, and made of small functions."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

import orch_sidecar
from tests.integration.request_way import WAYS

# Functions, files, changes of the file. A feature may add three functions to the first two, and
# none where it is not used.
LIMITS: Final = {
    "plain": (90, 31, 66),
    "json": (90, 31, 66),
    "pools": (125, 40, 105),
    "shared": (140, 40, 110),
}
MOST_LINES: Final = 60
MOST_COMPLEX: Final = 10
PACKAGE: Final = Path(orch_sidecar.__file__).parent

Found = dict[str, tuple[tuple[int, int, int], set[tuple[str, str, int]]]]


@pytest.fixture(scope="module")
def ways() -> Found:
    """In a process of its own: a trace is of everything that runs there."""
    command = [sys.executable, "-m", "tests.integration.request_way", "--json"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return {
        way: ((functions, files, changes), {(file, name, line) for file, name, line in calls})
        for way, functions, files, changes, calls in map(json.loads, printed.splitlines())
    }


@pytest.mark.parametrize("way", WAYS)
def test_way_of_a_request_is_short(ways: Found, way: str) -> None:
    counts, _ = ways[way]
    assert all(found <= most for found, most in zip(counts, LIMITS[way], strict=True)), counts


def test_no_function_on_the_way_is_a_giant(ways: Found) -> None:
    called = {(file, line) for _, calls in ways.values() for file, _, line in calls}
    for file in {file for file, _ in called}:
        for node in ast.walk(ast.parse((PACKAGE / file).read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or 0) - node.lineno + 1
                first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
                assert (file, first) not in called or lines <= MOST_LINES, f"{file}: {node.name}"
    limit = f"lint.mccabe.max-complexity={MOST_COMPLEX}"
    command = ["ruff", "check", "--isolated", "--select", "C901", "--config", limit]
    command = [sys.executable, "-m", *command, "--output-format", "json", str(PACKAGE)]
    printed = subprocess.run(command, check=False, capture_output=True, text=True).stdout
    complex_ones = {
        (Path(each["filename"]).relative_to(PACKAGE).as_posix(), each["location"]["row"])
        for each in json.loads(printed)
    }
    assert complex_ones, "there are some elsewhere"
    assert called & complex_ones == set()
