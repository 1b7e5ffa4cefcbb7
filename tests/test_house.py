"""The rules of the code that no linter knows: order of packages, purity, sizes."""

from __future__ import annotations

import graphlib
import subprocess
import sys
from collections import Counter

from tests.conftest import SLOW
from tests.import_graph import (
    IMPORTS,
    MODULES,
    ROOT,
    arrows,
    box,
    drawn,
    line,
    pure_modules,
    reachable,
    stated_imports,
)

MOST_LINES = 400
MOST_MODULES = 12
# All of the plugin that the sidecar may import, and all that imports vLLM.
CONTRACTS = "vllm_plugin.contracts"
WITH_VLLM = {"vllm_plugin", "vllm_plugin.adapters"}
IMPURE = ("asyncio", "aiohttp", "vllm", "opentelemetry", "uvloop", "starlette")


def test_drawing_of_the_packages_equals_their_imports() -> None:
    """`python -m tests.import_graph` prints the lines as they should be."""
    assert sorted(drawn()) == sorted(line(name, targets) for name, targets in arrows().items())


def test_no_package_imports_one_that_is_drawn_above_it() -> None:
    place = {entry.split()[0]: number for number, entry in enumerate(drawn())}
    upward = [
        f"{name} -> {target}"
        for name, targets in arrows().items()
        for target in sorted(targets)
        if place[target] < place[name]
    ]
    assert upward == []


def test_packages_say_what_they_import() -> None:
    """What both sides share, every package of the sidecar may import."""
    stated, does = stated_imports(), arrows()
    assert {"auth", "control", "pools", "proxy", "wire", "vllm_plugin.state"} <= stated.keys()
    assert stated == {
        name: does[name] if name.startswith("vllm_plugin") else does[name] - {CONTRACTS}
        for name in stated
    }


def test_no_module_imports_itself_by_way_of_others() -> None:
    inside = {module: imports & set(MODULES) for module, imports in IMPORTS.items()}
    try:
        graphlib.TopologicalSorter(inside).prepare()
    except graphlib.CycleError as error:
        raise AssertionError(" -> ".join(error.args[1])) from error


def test_sidecar_imports_only_pure_contracts_of_the_plugin_and_nothing_of_vllm() -> None:
    for module, imports in IMPORTS.items():
        if module.startswith("orch_sidecar"):
            tops = {name.split(".")[0] for name in imports}
            plugins = {name for name in imports if name.split(".")[0] == "vllm_plugin"}
            assert "vllm" not in tops, module
            assert {box(name) for name in plugins} <= {CONTRACTS}, module
    inside = {module for module in MODULES if box(module) == CONTRACTS} - {CONTRACTS}
    assert inside
    assert inside <= set(pure_modules())


def test_only_adapters_and_entry_points_of_the_plugin_import_vllm() -> None:
    importing = {
        box(module)
        for module, imports in IMPORTS.items()
        if "vllm" in {name.split(".")[0] for name in imports}
    }
    assert importing == WITH_VLLM


def test_plugin_imports_nothing_of_the_sidecar() -> None:
    for module, imports in IMPORTS.items():
        if module.startswith("vllm_plugin"):
            assert not [name for name in imports if name.startswith("orch_sidecar")], module


def test_only_the_export_of_traces_imports_opentelemetry() -> None:
    serving = reachable("orch_sidecar.app.sidecar")
    importing = {
        module
        for module in serving
        if any(name.startswith("opentelemetry") for name in IMPORTS[module])
    }
    package = "orch_sidecar.observability.otlp"
    names = ("delivery", "environment", "ids", "settings", "spans")
    assert importing == {f"{package}.{name}" for name in names}


_PROBE = """
import sys
from importlib import import_module
for module in sys.argv[1:]:
    import_module(module)
    loaded = [name for name in {impure} if name in sys.modules]
    if loaded:
        sys.exit(f"{{module}} loads {{', '.join(loaded)}}")
"""


def loading(*modules: str) -> str:
    """Imports modules one after the other in a fresh interpreter; returns the first complaint."""
    command = [sys.executable, "-c", _PROBE.format(impure=IMPURE), *modules]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT).stderr.strip()


def test_pure_modules_load_no_event_loop_no_http_and_no_engine() -> None:
    assert loading(*pure_modules()) == ""


def test_probe_notices_a_module_that_is_not_pure() -> None:
    assert loading("json", "orch_sidecar.app.sidecar").startswith("orch_sidecar.app.sidecar loads")


def test_packages_state_what_is_pure() -> None:
    """A statement that the reader of docstrings overlooks would check nothing."""
    stated = {module.rpartition(".")[0] for module in pure_modules()}
    assert {CONTRACTS, "orch_sidecar.admission", "orch_sidecar.api"} <= stated


def test_slow_files_are_files() -> None:
    assert [name for name in SLOW if not any(ROOT.glob(f"tests/**/{name}"))] == []


def test_no_folder_holds_more_modules_than_a_reader_keeps_in_mind() -> None:
    count = Counter(path.parent for path in MODULES.values() if path.name != "__init__.py")
    full = {
        str(folder.relative_to(ROOT)): number
        for folder, number in count.items()
        if number > MOST_MODULES
    }
    assert full == {}


def test_no_file_is_longer_than_a_reader_keeps_in_mind() -> None:
    tests = (ROOT / "tests").rglob("*.py")
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines())
        for path in (*MODULES.values(), *tests)
    }
    assert {name: lines for name, lines in lengths.items() if lines > MOST_LINES} == {}
