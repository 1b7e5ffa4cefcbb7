"""The list of hooks contains every name of vLLM that the package uses, and no other."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.vllm_plugin.compatibility import vllm_usage
from vllm_plugin.compatibility.hooks import symbols_below
from vllm_plugin.compatibility.vllm_names import HOOKS
from vllm_plugin.contracts.profile import load, shipped

# Hooks that are not attributes read by the package: functions that vLLM calls, for instance.
_CALLED = {
    ("plugins/__init__.py", ""),
    ("engine/arg_utils.py", "EngineArgs.create_engine_config"),
    ("v1/metrics/loggers.py", "StatLoggerBase"),
    ("v1/metrics/loggers.py", "StatLoggerBase.record"),
    ("plugins/endpoint_plugins/interface.py", "EndpointPlugin.attach_router"),
    ("plugins/endpoint_plugins/interface.py", "EndpointPlugin.init_state"),
    ("entrypoints/launchers/launcher.py", "serve_http"),
    ("entrypoints/launchers/api_server/app_state.py", "init_app_state"),
    ("v1/engine/core.py", "EngineCore"),
    ("v1/engine/output_processor.py", "OutputProcessor.do_tracing"),
    ("tracing/utils.py", "SpanAttributes"),
    ("__init__.py", ""),
    ("envs.py", ""),
}

LISTED = {(hook.file, hook.what, name) for hook in HOOKS for name in hook.names}


def is_listed(file: str, what: str, name: str) -> bool:
    if what or (file, what, name) in LISTED:
        return (file, what, name) in LISTED
    # An imported name of a module or package, or an imported class whose attributes are listed.
    return any(
        (path, "", name) in LISTED or any((path, name) == (hook.file, hook.what) for hook in HOOKS)
        for path in (f"{file}.py", f"{file}/__init__.py")
    )


def test_every_used_name_is_listed() -> None:
    missing = [found for found in sorted(vllm_usage.attributes()) if not is_listed(*found)]
    assert missing == []


def test_every_listed_name_is_used() -> None:
    found = vllm_usage.attributes()
    arguments = {
        ("engine/arg_utils.py", "EngineArgs", name)
        for name in {*vllm_usage.strings("enforcement/enforce"), *profile_arguments()}
    }
    imported = {name for _, what, name in found if not what}
    unused = {
        (file, what, name)
        for file, what, name in LISTED - found - arguments
        if (file, what) not in _CALLED and not (not what and name in imported)
    }
    assert unused == set()


def profile_arguments() -> set[str]:
    """Returns the engine arguments that the shipped profiles set."""
    return {name for profile in shipped() for name in load(profile).engine}


def test_arguments_of_profiles_and_of_enforcement_are_listed() -> None:
    """They are accessed by name: as strings of the module, or as keys of a profile."""
    spec = find_spec("vllm")
    if spec is None or spec.origin is None:
        pytest.skip("vLLM is not installed: install the extra `cpu` or `gpu`")
    symbols = symbols_below(Path(spec.origin).parent)("engine/arg_utils.py")
    assert symbols is not None
    by_name = set(vllm_usage.strings("enforcement/enforce")) & set(symbols["EngineArgs"])
    listed = {name for file, what, name in LISTED if what == "EngineArgs"}
    assert by_name | profile_arguments() <= listed


def test_names_of_spans_and_attributes_are_listed() -> None:
    expected = {
        name.partition("=")[2].strip("'")
        for hook in HOOKS
        if hook.needed_for == "span labels"
        for name in hook.names
    }
    assert expected <= set(vllm_usage.strings("adapters/spans"))
    theirs = {
        text for text in vllm_usage.strings("adapters/spans") if text.startswith("gen_ai.latency")
    }
    assert theirs <= expected


def test_environment_variables_of_vllm_that_are_used_are_listed() -> None:
    used = {
        text
        for module in ("allowlist", "enforcement/enforce", "enforcement/ranks")
        for text in vllm_usage.strings(module)
        if text.startswith("VLLM_") and text.isidentifier()
    }
    assert {("envs.py", "", name) for name in used} <= LISTED
