"""The record of a release: for each file, class and function of HOOKS, the names found there.

Only names are kept, none of vLLM's code. All names of a place are kept, so that a hook may use
another name there without a new record.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from vllm_plugin.enforcement.hooks import Symbols
from vllm_plugin.enforcement.vllm_names import HOOKS


class Record(BaseModel):
    """The symbols read from one wheel; None for a place that does not exist in it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: str
    wheel: str
    sha256: str | None
    files: dict[str, dict[str, list[str] | None]]

    def symbols_of(self, file: str) -> Symbols | None:
        """Returns the symbols of a file, for `hooks.check`, without places that do not exist."""
        places = self.files.get(file, {})
        return {what: names for what, names in places.items() if names is not None} or None

    def unrecorded(self) -> list[str]:
        """Returns the places of HOOKS that are not in this record."""
        return sorted(
            {
                f"{hook.file}:{hook.what}"
                for hook in HOOKS
                if hook.what not in self.files.get(hook.file, {})
            }
        )


def collect(symbols_of: Callable[[str], Symbols | None]) -> dict[str, dict[str, list[str] | None]]:
    """Returns the names in each place of HOOKS, by file and place."""
    files: dict[str, dict[str, list[str] | None]] = {}
    for hook in HOOKS:
        names = (symbols_of(hook.file) or {}).get(hook.what)
        places = files.setdefault(hook.file, {})
        places[hook.what] = None if names is None else sorted(set(names))
    return files


def path_of(version: str) -> Path:
    """Returns the path of the committed record of a release."""
    return Path(__file__).parent / f"vllm-{version}.json"


def read(version: str) -> Record:
    """Reads the committed record of a release."""
    return Record.model_validate_json(path_of(version).read_text(encoding="utf-8"))


def write(record: Record) -> Path:
    """Writes a record, and returns its path."""
    path = path_of(record.version)
    text = json.dumps(record.model_dump(), indent=2, sort_keys=True)
    path.write_text(text + "\n", encoding="utf-8")
    return path
