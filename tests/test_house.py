"""The house rules that no linter knows: directions, purity, and what the wheel contains."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from email import message_from_bytes
from importlib.metadata import entry_points
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("orch_sidecar", "vllm_plugin")

LISTED = (
    "orch_sidecar",
    "orch_sidecar.admission",
    "orch_sidecar.tools.simulate",
    "orch_sidecar.tools.facts",
    "orch_sidecar.tools.bench",
    "orch_sidecar.tools.bench.decode",
)

PURE = (
    "vllm_plugin.steps",
    "vllm_plugin.step_time",
    "vllm_plugin.curve",
    "vllm_plugin.stall_detector",
    "vllm_plugin.kv_cache",
    "vllm_plugin.leases",
    "vllm_plugin.readiness",
    "vllm_plugin.routes",
    "vllm_plugin.workloads",
    "vllm_plugin.engine_state",
    "vllm_plugin.hooks",
    "vllm_plugin.symbols",
    "vllm_plugin.allowlist",
    "vllm_plugin.connectors",
    "vllm_plugin.profile",
    "orch_sidecar.api.json_body",
    "orch_sidecar.api.body_outline",
    "orch_sidecar.api.generation",
    "orch_sidecar.api.coalescing_key",
    "orch_sidecar.coalescing.response_id",
    "orch_sidecar.coalescing.tenant",
    "orch_sidecar.api.refusal",
    "orch_sidecar.api.redaction",
    "orch_sidecar.api.errors",
    "orch_sidecar.wire.http1",
    "orch_sidecar.api.usage",
    "orch_sidecar.wire.backpressure",
    "orch_sidecar.engine_state.report",
    "orch_sidecar.engine_state.document",
    "orch_sidecar.engine_state.states",
    "orch_sidecar.wire.event_stream",
    "orch_sidecar.pools.routing",
    "orch_sidecar.pools.membership",
    "orch_sidecar.api.options",
    "orch_sidecar.control.capabilities",
    "orch_sidecar.pools.parent_leases",
    "orch_sidecar.control.stream_readers",
    "orch_sidecar.proxy.in_flight",
    "orch_sidecar.auth.authorizer",
    "orch_sidecar.auth.admin_hosts",
    "orch_sidecar.auth.keys",
    "orch_sidecar.config.changes",
    "orch_sidecar.tools.simulate.engine",
    "orch_sidecar.tools.simulate.workload",
    "orch_sidecar.tools.simulate.fronts",
    "orch_sidecar.tools.simulate.run",
    "orch_sidecar.tools.simulate.report",
    "orch_sidecar.tools.simulate.compare",
    "orch_sidecar.tools.simulate.table",
    "orch_sidecar.tools.facts.traces.scenario_row",
    "orch_sidecar.tools.facts.traces.validity",
    "orch_sidecar.tools.facts.traces.occupancy",
    "orch_sidecar.tools.facts.traces.scenarios",
    "orch_sidecar.tools.facts.traces.requests",
    "orch_sidecar.tools.facts.traces.paging",
    "orch_sidecar.tools.facts.traces.jaeger_json",
    "orch_sidecar.tools.facts.traces.otlp_file",
    "orch_sidecar.tools.facts.traces.otlp",
    "orch_sidecar.tools.facts.traces.span",
    "orch_sidecar.tools.facts.evidence.verdict",
    "orch_sidecar.tools.facts.evidence.snapshot",
    "orch_sidecar.tools.facts.evidence.run_row",
    "orch_sidecar.tools.facts.evidence.guidellm",
    "orch_sidecar.tools.facts.evidence.vllm_bench",
    "orch_sidecar.tools.facts.evidence.measured",
    "orch_sidecar.tools.facts.tables.row",
    "orch_sidecar.tools.facts.evidence.figures",
    "orch_sidecar.tools.facts.tables.table",
    "orch_sidecar.tools.facts.tables.rules",
    "orch_sidecar.tools.facts.tables.check",
    "orch_sidecar.tools.facts.tables.migrate",
    "orch_sidecar.tools.facts.tables.merge",
    "orch_sidecar.tools.facts.comparison.compare",
    "orch_sidecar.tools.facts.comparison.report",
    "orch_sidecar.tools.bench.results.fit",
    "orch_sidecar.tools.bench.load.arrivals",
    "orch_sidecar.tools.bench.load.prompts",
    "orch_sidecar.tools.bench.decode.shape",
    "orch_sidecar.tools.bench.decode.schedule",
    "orch_sidecar.tools.bench.decode.figures",
    "orch_sidecar.tools.bench.decode.report",
    "orch_sidecar.tools.bench.decode.words",
    "orch_sidecar.admission.controller",
    "orch_sidecar.admission.constraints.rules",
    "orch_sidecar.admission.prediction.service_time",
    "orch_sidecar.admission.ledger",
    "orch_sidecar.admission.prediction.release_rate",
    "orch_sidecar.admission.draining",
)


def sources() -> Iterator[tuple[str, Path]]:
    """Every module of both packages, as (dotted name, file)."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            dotted = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            yield dotted.removesuffix(".__init__"), path


MODULES = dict(sources())


def imports_of(module: str) -> set[str]:
    """What a module imports anywhere, inside of functions too, as dotted module names."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import"
            assert node.module is not None
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                found.add(submodule if submodule in MODULES else node.module)
    return found


def order_of(package: str) -> list[str]:
    """The names in the dependency list of a package's docstring, from the top."""
    docstring = ast.get_docstring(ast.parse(MODULES[package].read_text(encoding="utf-8")))
    assert docstring is not None
    return re.findall(r"^    (\w+) +\S", docstring, re.MULTILINE)


@pytest.mark.parametrize("package", LISTED)
def test_every_module_has_its_place_in_the_packages_list(package: str) -> None:
    below = {name.removeprefix(f"{package}.") for name in MODULES if name.startswith(f"{package}.")}
    assert sorted(order_of(package)) == sorted({name.split(".")[0] for name in below})


@pytest.mark.parametrize("package", LISTED)
def test_dependencies_point_down_the_packages_list(package: str) -> None:
    place = {name: index for index, name in enumerate(order_of(package))}
    upward = []
    for module in MODULES:
        if not module.startswith(f"{package}."):
            continue
        here = module.removeprefix(f"{package}.").split(".")[0]
        for imported in imports_of(module):
            if imported.startswith(f"{package}."):
                there = imported.removeprefix(f"{package}.").split(".")[0]
                if there != here and place[there] < place[here]:
                    upward.append(f"{module} imports {imported}")
    assert upward == []


@pytest.mark.parametrize("module", [name for name in MODULES if name.startswith("orch_sidecar")])
def test_sidecar_knows_the_profile_and_nothing_else_of_the_engine(module: str) -> None:
    for imported in imports_of(module):
        assert imported.split(".")[0] != "vllm"
        if imported.split(".")[0] == "vllm_plugin":
            assert imported == "vllm_plugin.profile"


@pytest.mark.parametrize("module", [name for name in MODULES if name.startswith("vllm_plugin")])
def test_plugin_does_not_know_the_sidecar(module: str) -> None:
    assert not [name for name in imports_of(module) if name.split(".")[0] == "orch_sidecar"]


def test_only_telemetry_knows_opentelemetry_in_a_serving_sidecar() -> None:
    knowing = {
        module
        for module in MODULES
        for imported in imports_of(module)
        if module.startswith("orch_sidecar.") and imported.startswith("opentelemetry")
    }
    assert {name for name in knowing if ".local." not in name} == {
        "orch_sidecar.observability.otel"
    }


IMPURE = ("asyncio", "aiohttp", "vllm", "opentelemetry", "uvloop", "starlette")


def loaded_by(code: str) -> set[str]:
    """Which of the impure packages a fresh interpreter has loaded after running this."""
    probe = f"{code}\nimport sys\nprint(*[name for name in {IMPURE} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    return set(result.stdout.split())


@pytest.mark.parametrize("module", PURE)
def test_pure_module_loads_no_event_loop_no_http_and_no_engine(module: str) -> None:
    assert loaded_by(f"import {module}") == set()


def test_serving_without_traces_loads_no_opentelemetry_sdk() -> None:
    """Its memory is for those who want traces."""
    code = "import orch_sidecar.app.sidecar, sys; assert 'opentelemetry.sdk' not in sys.modules"
    assert "vllm" not in loaded_by(code)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel, built from this tree."""
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    [path] = out.glob("*.whl")
    return zipfile.ZipFile(path)


def test_wheel_contains_both_packages_whole(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    for path in MODULES.values():
        assert str(path.relative_to(ROOT)) in names
    for package in PACKAGES:
        assert f"{package}/py.typed" in names


def test_wheel_contains_nothing_else(wheel: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0] for name in wheel.namelist()}
    [info] = [top for top in tops if top.endswith(".dist-info")]
    assert tops == {*PACKAGES, "orch_vllm_plugin.pth", info}
    unwanted = re.compile(r"__pycache__|/tests/|\.md$")
    assert not [name for name in wheel.namelist() if unwanted.search(name)]


def test_wheel_ships_the_profiles_as_they_are(wheel: zipfile.ZipFile) -> None:
    shipped = {path.name: path.read_bytes() for path in (ROOT / "profiles").glob("*.yaml")}
    assert set(shipped) == {"home.yaml", "cloud.yaml", "offline.yaml"}
    for name, content in shipped.items():
        assert wheel.read(f"vllm_plugin/profiles/{name}") == content


def test_wheel_puts_the_pth_file_where_site_reads_it(wheel: zipfile.ZipFile) -> None:
    source = (ROOT / "vllm_plugin" / "orch_vllm_plugin.pth").read_bytes()
    assert wheel.read("orch_vllm_plugin.pth") == source


def metadata_file(wheel: zipfile.ZipFile, name: str) -> bytes:
    [path] = [path for path in wheel.namelist() if path.endswith(f".dist-info/{name}")]
    return wheel.read(path)


def test_wheel_has_a_licence_and_says_what_it_is(wheel: zipfile.ZipFile) -> None:
    licence = (ROOT / "LICENSE").read_bytes()
    assert b"Apache License" in licence
    assert metadata_file(wheel, "licenses/LICENSE") == licence
    metadata = message_from_bytes(metadata_file(wheel, "METADATA"))
    assert metadata["Name"] == "orch-sidecar"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert {"cpu", "gpu", "dev"} <= set(metadata.get_all("Provides-Extra") or [])


def test_wheel_registers_each_plugin_under_one_name(wheel: zipfile.ZipFile) -> None:
    text = metadata_file(wheel, "entry_points.txt").decode()
    groups = dict(re.findall(r"\[(.+)\]\n(.+)", text))
    assert groups == {
        "console_scripts": "orch = orch_sidecar.cli:main",
        "vllm.general_plugins": "orch = vllm_plugin.register:general_plugin",
        "vllm.stat_logger_plugins": "orch = vllm_plugin.register:StatLogger",
        "vllm.endpoint_plugins": "orch = vllm_plugin.register:endpoint_plugin",
    }


def test_registered_functions_exist() -> None:
    """Those of the stat logger derive from a class of vLLM, and are made on demand."""
    for group in ("console_scripts", "vllm.general_plugins", "vllm.endpoint_plugins"):
        [point] = entry_points(group=group, name="orch")
        assert callable(point.load())
