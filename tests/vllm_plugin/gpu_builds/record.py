"""The record of a release: for each place that HOOKS names, the names found in it.

Names only, nothing of vLLM's code. All names of a place are kept, not just the wanted ones, so
that a record answers for a hook that wants one more name there. Knows no network.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from vllm_plugin.hooks import HOOKS
from vllm_plugin.symbols import Symbols


class Record(BaseModel):
    """What was read from one wheel; None where a place does not exist in it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: str
    wheel: str
    sha256: str | None
    files: dict[str, dict[str, list[str] | None]]

    def symbols_of(self, file: str) -> Symbols | None:
        """The outline of a file, for `hooks.check`: places that do not exist are left out."""
        places = self.files.get(file, {})
        return {what: names for what, names in places.items() if names is not None} or None

    def unrecorded(self) -> list[str]:
        """The places that HOOKS names and that were not looked at when this was written."""
        return sorted(
            {
                f"{hook.file}:{hook.what}"
                for hook in HOOKS
                if hook.what not in self.files.get(hook.file, {})
            }
        )


def look(symbols_of: Callable[[str], Symbols | None]) -> dict[str, dict[str, list[str] | None]]:
    """The names in each place that HOOKS names; files and places as keys."""
    files: dict[str, dict[str, list[str] | None]] = {}
    for hook in HOOKS:
        names = (symbols_of(hook.file) or {}).get(hook.what)
        places = files.setdefault(hook.file, {})
        places[hook.what] = None if names is None else sorted(set(names))
    return files


def path_of(version: str) -> Path:
    """Where the record of a release is committed."""
    return Path(__file__).parent / f"vllm-{version}.json"


def read(version: str) -> Record:
    """The committed record of a release."""
    return Record.model_validate_json(path_of(version).read_text(encoding="utf-8"))


def write(record: Record) -> Path:
    """Writes a record to its place, and says where that is."""
    path = path_of(record.version)
    text = json.dumps(record.model_dump(), indent=2, sort_keys=True)
    path.write_text(text + "\n", encoding="utf-8")
    return path
