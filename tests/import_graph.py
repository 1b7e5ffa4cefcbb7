"""The modules of both packages, what each imports, and the drawing of their packages.

`python -m tests.import_graph` prints the lines that CONTRIBUTING.md's drawing should have.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PACKAGES: Final = ("orch_sidecar", "vllm_plugin")
CONTRIBUTING: Final = ROOT / "CONTRIBUTING.md"


def _modules() -> Iterator[tuple[str, Path]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            dotted = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            yield dotted.removesuffix(".__init__"), path


# Dotted name to file.
MODULES: Final = dict(_modules())


def _imports(module: str) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                found.add(submodule if submodule in MODULES else node.module)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "." in node.value:
            # The command line loads a command by its name, when it is asked for.
            found |= {f"{package}.{node.value}" for package in PACKAGES} & set(MODULES)
    return found


# What each module imports anywhere, inside of functions too, as dotted names.
IMPORTS: Final = {module: _imports(module) for module in MODULES}


def reachable(start: str) -> set[str]:
    """Returns a module and the project's modules that it imports, directly or not."""
    found: set[str] = set()
    rest = [start]
    while rest:
        module = rest.pop()
        if module not in found:
            found.add(module)
            rest.extend(name for name in IMPORTS[module] if name in MODULES)
    return found


def box(module: str) -> str:
    """Returns the name of a module's box in the drawing."""
    package, *rest = module.split(".")
    if package == "vllm_plugin":
        is_inside = len(rest) > 1 or (rest and MODULES[module].name == "__init__.py")
        return f"{package}.{rest[0]}" if is_inside else package
    if rest[:1] == ["tools"]:
        return ".".join(rest[:2])
    is_package = len(rest) > 1 or MODULES[module].name == "__init__.py"
    return rest[0] if rest and is_package else "cli"


def arrows() -> dict[str, set[str]]:
    """Returns the boxes that each box imports."""
    found: dict[str, set[str]] = {}
    for module, imports in IMPORTS.items():
        here = found.setdefault(box(module), set())
        here |= {box(name) for name in imports if name in MODULES} - {box(module)}
    # Packages that hold packages only import nothing.
    return {name: targets for name, targets in found.items() if name != "tools"}


def line(name: str, targets: set[str]) -> str:
    """Returns a box as the drawing has it."""
    return f"{name:<25} -> {', '.join(sorted(targets))}" if targets else name


def drawn() -> list[str]:
    """Returns the lines of CONTRIBUTING.md's drawing, from the top."""
    text = CONTRIBUTING.read_text(encoding="utf-8")
    found = re.search(
        r"<!-- packages -->\s*```text\n(.*?)```\s*<!-- /packages -->", text, re.DOTALL
    )
    assert found is not None, "CONTRIBUTING.md has no drawing of the packages"
    return found[1].splitlines()


# "Pure.", "Pure but for `a` and `b`, which ...", "Pure: `a`, `b`."
_NAMES = r"(?:`\w+`(?:, | and )?)+"
_STATED = re.compile(rf"\bPure(?P<all>\.)?(?: but for (?P<but>{_NAMES}))?(?:: (?P<only>{_NAMES}))?")


def pure_modules() -> list[str]:
    """Returns the modules that their packages' docstrings declare pure.

    Raises ValueError for a statement that cannot be read, or names a module that is not there.
    """
    found = []
    for package, path in MODULES.items():
        if path.name != "__init__.py":
            continue
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        stated = _STATED.search(" ".join(text.split()))
        if stated is None:
            continue
        inside = {
            name.rpartition(".")[2]
            for name, file in MODULES.items()
            if file.parent == path.parent and file.name != "__init__.py"
        }
        named = set(re.findall(r"`(\w+)`", stated["but"] or stated["only"] or ""))
        if not named <= inside or not (named or stated["all"]):
            raise ValueError(f"{package}: {stated[0]!r} of {sorted(inside)} cannot be read")
        pure = named if stated["only"] else inside - named
        found += sorted(f"{package}.{name}" for name in pure)
    return found


# "May import `a`, `b` and of `c` the d."
_MAY_IMPORT = re.compile(r"\bMay import ((?:[^`;.]*`[\w.]+`)+)")


def stated_imports() -> dict[str, set[str]]:
    """Returns the boxes that packages' docstrings say they may import, by box; of `a.b` the first.
    The tools share small packages that none of them names."""
    found = {}
    for package, path in MODULES.items():
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        stated = _MAY_IMPORT.search(" ".join(text.split()))
        name = box(package)
        if stated is not None and package in (f"orch_sidecar.{name}", name):
            names = re.findall(r"`(\w+)", stated[1])
            prefix = "vllm_plugin." if name.startswith("vllm_plugin") else ""
            found[name] = {f"{prefix}{each}" for each in names}
    return {name: targets for name, targets in found.items() if not name.startswith("tools")}


if __name__ == "__main__":
    order = [entry.split()[0] for entry in drawn()]
    now = arrows()
    for each in sorted(now, key=lambda name: (order.index(name) if name in order else -1, name)):
        print(line(each, now[each]))
