"""The API keys of the clients, their file, and when each of them changed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random

from orch_sidecar.auth.keys import RANDOM_BYTES, new_key
from tests.integration.keyed import KeyRing


@dataclass(slots=True)
class Key:
    """One client's key. `changes`: how often it was added to the file or taken out since the start.
    `settled_at`: when the sidecar was seen to know of the last time."""

    name: str
    value: str
    bulk: bool = False
    concurrency: int | None = None
    known: bool = True
    changes: int = 0
    settled_at: float = float("-inf")

    def unsettled(self, since: float) -> bool:
        """Whether the sidecar may not have known of its last change at that time."""
        return since < self.settled_at


class Keys:
    """Some that always hold, some that come and go, one that is nobody's."""

    def __init__(self, directory: Path, chance: Random) -> None:
        self._ring = KeyRing(directory)
        self._chance = chance
        self.steady = [
            self._add("alice"),
            self._add("bob"),
            self._add("nightly", bulk=True),
            self._add("narrow", concurrency=2),
        ]
        self.passing = [self._add(f"guest-{number}") for number in range(3)]
        self.strange = Key("nobody", new_key(chance.randbytes(RANDOM_BYTES)), known=False)

    @property
    def path(self) -> Path:
        return self._ring.path

    def choose(self) -> Key:
        """The key of the next request."""
        draw = self._chance.random()
        if draw < 0.02:
            return self.strange
        if draw < 0.15:
            return self._chance.choice(self.passing)
        return self._chance.choices(self.steady, (6, 3, 1, 1))[0]

    def turn(self) -> Key:
        """Revokes one that comes and goes, or gives it back."""
        key = self._chance.choice(self.passing)
        if key.known:
            self._ring.remove(key.name)
        else:
            self._ring.add(key.name)
        key.known = not key.known
        key.changes += 1
        key.settled_at = float("inf")
        return key

    def spoil(self) -> None:
        """Writes a file that cannot be used: every key stays as it was."""
        text = self._chance.choice(["", "- name: [", "[]", "- {name: x}", "\0", "not: a list"])
        self._ring.path.with_suffix(".new").write_text(text)
        self._ring.path.with_suffix(".new").rename(self._ring.path)

    def mend(self) -> None:
        self._ring.write()

    def _add(self, name: str, *, bulk: bool = False, concurrency: int | None = None) -> Key:
        value = self._ring.add(name, bulk=bulk, concurrency=concurrency)
        return Key(name, value, bulk, concurrency)
