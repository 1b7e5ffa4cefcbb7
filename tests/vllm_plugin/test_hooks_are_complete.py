"""The list of hooks names all that the package touches of vLLM, and nothing else."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.vllm_plugin import touched
from vllm_plugin.hooks import HOOKS
from vllm_plugin.profile import load, shipped
from vllm_plugin.symbols import symbols_below

# What is listed and not an attribute that is read: what vLLM calls, and what it passes.
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
    # An import: of a name in a module or a package, or of a class whose parts are listed.
    return any(
        (path, "", name) in LISTED or any((path, name) == (hook.file, hook.what) for hook in HOOKS)
        for path in (f"{file}.py", f"{file}/__init__.py")
    )


def test_all_that_is_touched_is_listed() -> None:
    missing = [found for found in sorted(touched.attributes()) if not is_listed(*found)]
    assert missing == []


def test_nothing_is_listed_that_is_not_touched() -> None:
    found = touched.attributes()
    arguments = {
        ("engine/arg_utils.py", "EngineArgs", name)
        for name in {*touched.strings("enforce"), *load_all_arguments()}
    }
    imported = {name for _, what, name in found if not what}
    spare = {
        (file, what, name)
        for file, what, name in LISTED - found - arguments
        if (file, what) not in _CALLED and not (not what and name in imported)
    }
    assert spare == set()


def load_all_arguments() -> set[str]:
    """The engine arguments that the shipped profiles set."""
    return {name for profile in shipped() for name in load(profile).engine}


def test_arguments_of_profiles_and_of_enforcement_are_listed() -> None:
    """They are looked up by name: as strings of the module, or as keys of a profile."""
    spec = find_spec("vllm")
    if spec is None or spec.origin is None:
        pytest.skip("vLLM is not installed: install the extra `cpu` or `gpu`")
    parse_symbols = symbols_below(Path(spec.origin).parent)("engine/arg_utils.py")
    assert parse_symbols is not None
    by_name = set(touched.strings("enforce")) & set(parse_symbols["EngineArgs"])
    listed = {name for file, what, name in LISTED if what == "EngineArgs"}
    assert by_name | load_all_arguments() <= listed


def test_names_of_spans_and_attributes_are_those_that_are_looked_for() -> None:
    expected = {
        name.partition("=")[2].strip("'")
        for hook in HOOKS
        if hook.needed_for == "span labels"
        for name in hook.names
    }
    assert expected <= set(touched.strings("spans"))
    theirs = {text for text in touched.strings("spans") if text.startswith("gen_ai.latency")}
    assert theirs <= expected


def test_variables_of_vllm_that_are_read_or_set_are_listed() -> None:
    used = {
        text
        for module in ("allowlist", "enforce")
        for text in touched.strings(module)
        if text.startswith("VLLM_") and text.isidentifier()
    }
    assert {("envs.py", "", name) for name in used} <= LISTED
