"""The symbols of a module, read from its source."""

from __future__ import annotations

from pathlib import Path

from vllm_plugin.compatibility.symbols import parse_symbols, symbols_below

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
