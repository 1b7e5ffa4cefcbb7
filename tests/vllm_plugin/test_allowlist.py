"""VLLM_PLUGINS names us whenever a profile is selected."""

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
    """Two other plugins of vLLM, ours, a package that is none, and `others`."""
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


def test_unset_list_becomes_all_that_is_installed(installed: None) -> None:
    environ = {"ORCH_PROFILE": "home"}
    ensure(environ)
    assert environ["VLLM_PLUGINS"] == "lora,metrics,orch"


def test_endpoint_plugins_of_others_stay_off(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They open HTTP routes: vLLM loads them only where the operator names them."""
    install(monkeypatch, EntryPoint("debug_routes", "a:b", "vllm.endpoint_plugins"))
    environ = {"ORCH_PROFILE": "home"}
    ensure(environ)
    assert environ["VLLM_PLUGINS"] == "lora,metrics,orch"
    assert caplog.messages == [], "without us it would not be loaded either"
    environ = {"ORCH_PROFILE": "home", "VLLM_PLUGINS": "debug_routes"}
    ensure(environ)
    assert environ["VLLM_PLUGINS"] == "debug_routes,orch"


def test_name_that_opens_routes_is_left_out_of_all_groups_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The list has one name for the plugins of all groups."""
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
    assert len(caplog.messages) == 1, "said once"


def test_list_names_us_even_if_our_metadata_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_list_that_is_set_gets_us_appended(given: str, expected: str, installed: None) -> None:
    environ = {"ORCH_PROFILE": "home", "VLLM_PLUGINS": given}
    ensure(environ)
    assert environ["VLLM_PLUGINS"] == expected
    ensure(environ)
    assert environ["VLLM_PLUGINS"] == expected, "idempotent"


def test_installed_distribution_registers_under_this_name() -> None:
    environ = {"ORCH_PROFILE": "home"}
    ensure(environ)
    assert allowlist.NAME in environ["VLLM_PLUGINS"].split(",")


def started(**environ: str) -> str:
    """VLLM_PLUGINS as a fresh interpreter sees it after reading our `.pth` line."""
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
    """`site` executes lines that begin with `import`, and takes others for paths."""
    [line] = (ROOT / "vllm_plugin" / "orch_vllm_plugin.pth").read_text().splitlines()
    assert line.startswith("import ")
