"""The cheats: ways to a label or a figure that was not earned. Each is a row of one table.

A module has those of one source; `test_cheats` runs all of them. Rows that no gate refuses are
honest ones at the edge of a rule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import NamedTuple


class Gate(StrEnum):
    """What may refuse a cheat."""

    JUDGE = "judge"  # of a run, or of traces
    IMPORT = "import"  # of another tool's file
    CHECK = "check"  # of a table
    VERIFY = "verify"  # of a row's evidence


class Cheat(NamedTuple):
    """`rules`: the gates that refuse it, each with a part of what it says. `said`: makes the cheat,
    and returns what each gate that it passes through says; nothing where it lets it pass."""

    name: str
    rules: Mapping[Gate, str]
    said: Callable[[], Mapping[Gate, str]]
