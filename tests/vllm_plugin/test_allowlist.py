"""VLLM_PLUGINS contains this plugin whenever a profile is selected."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from vllm_plugin import allowlist
from vllm_plugin.allowlist import ensure

ROOT = Path(allowlist.__file__).parents[1]


def install(monkeypatch: pytest.MonkeyPatch, *others: EntryPoint) -> None:
    """Installs two other plugins of vLLM, this one, another package, and `others`."""
    points = EntryPoints(
        [
            EntryPoint("lora", "a:b", "vllm.general_plugins"),
            EntryPoint("metrics", "a:b", "vllm.stat_logger_plugins"),
            EntryPoint("orch", "a:b", "vllm.endpoint_plugins"),
            EntryPoint("orch", "a:b", "vllm.general_plugins"),
            EntryPoint("pip", "a:b", "console_scripts"),
            *others,
        ]
    )
    monkeypatch.setattr(allowlist, "entry_points", lambda: points)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)


@pytest.mark.parametrize("environ", [{}, {"ORCH_PROFILE": ""}, {"VLLM_PLUGINS": "lora"}])
def test_without_a_profile_nothing_changes(environ: dict[str, str], installed: None) -> None:
    before = dict(environ)
    ensure(environ)
    assert environ == before


def test_unset_list_becomes_all_installed_plugins(installed: None) -> None:
    environ = {"ORCH_PROFILE": "home"}
    ensure(environ)
    assert environ["VLLM_PLUGINS"] == "lora,metrics,orch"


def test_endpoint_plugins_of_other_packages_are_not_enabled(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They open HTTP routes: vLLM loads them only if the operator names them."""
    install(monkeypatch, EntryPoint("debug_routes", "a:b", "vllm.endpoint_plugins"))
    environ = {"ORCH_PROFILE": "home"}
    ensure(environ)
    assert environ["VLLM_PLUGINS"] == "lora,metrics,orch"
    assert caplog.messages == [], "without a profile it would not be loaded either"
    environ = {"ORCH_PROFILE": "home", "VLLM_PLUGINS": "debug_routes"}
    ensure(environ)
    assert environ["VLLM_PLUGINS"] == "debug_routes,orch"


def test_name_of_an_endpoint_plugin_is_left_out_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The list is shared by all groups."""
    install(
        monkeypatch,
        EntryPoint("ops", "a:b", "vllm.endpoint_plugins"),
        EntryPoint("ops", "a:b", "vllm.general_plugins"),
    )
    environ = {"ORCH_PROFILE": "home"}
    ensure(environ)
    assert environ["VLLM_PLUGINS"] == "lora,metrics,orch"
    [message] = caplog.messages
    assert "ops; to load both, set VLLM_PLUGINS" in message
    ensure(environ)
    assert len(caplog.messages) == 1, "logged once"


def test_list_contains_the_plugin_even_without_its_metadata(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(allowlist, "entry_points", lambda: EntryPoints([]))
    environ = {"ORCH_PROFILE": "home"}
    ensure(environ)
    assert environ["VLLM_PLUGINS"] == "orch"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("lora", "lora,orch"),
        ("", "orch"),
        ("orch", "orch"),
        ("lora,orch", "lora,orch"),
        ("orchestra", "orchestra,orch"),
        ("lora, orch", "lora, orch,orch"),  # vLLM does not strip names
    ],
)
def test_plugin_is_appended_to_a_list_that_is_set(
    given: str, expected: str, installed: None
) -> None:
    environ = {"ORCH_PROFILE": "home", "VLLM_PLUGINS": given}
    ensure(environ)
    assert environ["VLLM_PLUGINS"] == expected
    ensure(environ)
    assert environ["VLLM_PLUGINS"] == expected, "idempotent"


def started(**environ: str) -> str:
    """Returns VLLM_PLUGINS of a new interpreter after the line of the `.pth` file."""
    line = (ROOT / "vllm_plugin" / "orch_vllm_plugin.pth").read_text()
    code = f"{line}\nimport os; print(repr(os.environ.get('VLLM_PLUGINS')))"
    clean = {k: v for k, v in os.environ.items() if k not in ("ORCH_PROFILE", "VLLM_PLUGINS")}
    result = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env=clean | {"PYTHONPATH": str(ROOT)} | environ,
        capture_output=True,
        text=True,
    )
    assert result.stderr == ""
    return result.stdout.strip()


def test_pth_line_prepares_the_list_at_interpreter_start() -> None:
    assert started() == "None"
    assert started(VLLM_PLUGINS="lora") == "'lora'"
    assert started(VLLM_PLUGINS="lora", ORCH_PROFILE="home") == "'lora,orch'"


def test_pth_file_is_one_line_that_imports() -> None:
    """`site` executes lines that begin with `import`, and adds all others as paths."""
    [line] = (ROOT / "vllm_plugin" / "orch_vllm_plugin.pth").read_text().splitlines()
    assert line.startswith("import ")
