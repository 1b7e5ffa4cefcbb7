"""Clients with API keys, and the file that a sidecar knows them by."""

from __future__ import annotations

import os
from pathlib import Path

from orch_sidecar.auth.keys import RANDOM_BYTES, entry_of, new_key

Header = tuple[str, str]


class KeyRing:
    """The keys of some clients, and their file."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "keys.yaml"
        self.keys: dict[str, str] = {}
        self._entries: dict[str, str] = {}

    def add(self, name: str, *, bulk: bool = False, **fields: float | str | None) -> str:
        """One more client. Returns its key."""
        key = self.keys.setdefault(name, new_key(os.urandom(RANDOM_BYTES)))
        self._entries[name] = entry_of(key, name, bulk=bulk, **fields)
        self.write()
        return key

    def remove(self, name: str) -> None:
        """Makes its key unknown."""
        del self._entries[name]
        self.write()

    def write(self) -> None:
        """As whole as a Secret changes: by another file in its place."""
        written = self.path.with_suffix(".new")
        written.write_text("".join(self._entries.values()))
        written.rename(self.path)

    def bearer(self, name: str) -> Header:
        return "Authorization", f"Bearer {self.keys[name]}"

    def x_api_key(self, name: str) -> Header:
        return "x-api-key", self.keys[name]
