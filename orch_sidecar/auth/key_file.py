"""A file of API keys on disk, read at start and again when it is another one.

Kubernetes swaps a link when a Secret changes, so a path may be another file from one moment to
the next. Looking at it blocks and changes nothing; what a look found is taken on the event loop.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orch_sidecar.auth.keys import MAX_FILE_BYTES, InvalidKeyFile, Keys, parse
from orch_sidecar.config.file_reader import FileReader, ReadTimeout

logger = logging.getLogger("orch.sidecar")

# When it was written, which file it is, and its size. None: there is none.
Identity = tuple[int, ...] | None

_UNREADABLE: Final = ()
# What else than a file may be opened: reading it could wait for somebody who writes.
_KINDS: Final = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


@dataclass(frozen=True, slots=True)
class Look:
    """What was found at the path: keys, why there are none that could be used, or no file."""

    identity: Identity
    keys: Keys | None = None
    wrong: InvalidKeyFile | None = None


class KeyFile:
    """One file, and what was last taken of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._reader = FileReader(f"api_keys_file {path}")
        self._taken: Identity = None
        self._had = False

    def begin(self) -> Keys | None:
        """Reads it at start. None: there is no such file, which is said. Raises InvalidKeyFile."""
        try:
            keys = self.take(self._reader.read_at_start(self.look))
        except ReadTimeout as late:
            raise InvalidKeyFile(str(late)) from None
        if keys is None:
            logger.info(
                "%s (api_keys_file) does not exist: requests are served without API keys", self.path
            )
        else:
            logger.info("%s: %d API keys", self.path, len(keys))
        return keys

    async def read(self) -> Keys | None:
        """The keys in it. None: there is no such file, and has been none.

        Raises InvalidKeyFile for a file that cannot be used, or is gone.
        """
        return await self._read(self.look)

    async def read_if_changed(self) -> Keys | None:
        """The keys in it if it is another file than before, else None. Raises as `read`."""
        return await self._read(self.look_if_changed)

    def look(self) -> Look:
        """What is there now. Blocks."""
        try:
            # Without waiting: the other end of a FIFO may never be opened.
            opened = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
            try:
                status = os.fstat(opened)  # of what is read, whatever the path is by now
                kind = _KINDS.get(stat.S_IFMT(status.st_mode))
                content = b"" if kind else _content(opened)
            finally:
                os.close(opened)
        except FileNotFoundError:
            if self._had:
                return Look(None, wrong=self._wrong("is gone"))
            if os.path.lexists(self.path):
                return Look(None, wrong=self._wrong("is a link to nothing"))
            return Look(None)
        except OSError as error:
            return self._unreadable(error)
        identity = _identity(status)
        if kind:
            return Look(identity, wrong=self._wrong(f"is {kind}: it must be a regular file"))
        if len(content) > MAX_FILE_BYTES:
            return Look(identity, wrong=self._wrong(f"is larger than {MAX_FILE_BYTES} bytes"))
        try:
            return Look(identity, parse(content.decode()))
        except UnicodeDecodeError:
            return Look(identity, wrong=self._wrong("is not UTF-8"))
        except InvalidKeyFile as wrong:
            return Look(identity, wrong=self._wrong(str(wrong)))

    def look_if_changed(self) -> Look | None:
        """What is there now, or None if it is what was taken last. Blocks."""
        try:
            identity: Identity = _identity(self.path.stat())
        except FileNotFoundError:
            identity = None
        except OSError as error:
            return self._unreadable(error)
        return None if identity == self._taken else self.look()

    def take(self, look: Look) -> Keys | None:
        """The keys of a look, which is the last one from here on. Raises InvalidKeyFile."""
        self._taken = look.identity
        if look.wrong is not None:
            raise look.wrong
        self._had = self._had or look.keys is not None
        return look.keys

    async def _read(self, look: Callable[[], Look | None]) -> Keys | None:
        try:
            found = await self._reader.read(look)
        except ReadTimeout as late:
            self._taken = _UNREADABLE
            raise InvalidKeyFile(str(late)) from None
        return None if found is None else self.take(found)

    def _unreadable(self, error: OSError) -> Look:
        wrong = self._wrong(f"cannot be read: {error.strerror or error}")
        return Look(_UNREADABLE, wrong=wrong)

    def _wrong(self, what: str) -> InvalidKeyFile:
        return InvalidKeyFile(f"api_keys_file {self.path} {what}")


def _content(opened: int) -> bytes:
    with os.fdopen(opened, "rb", closefd=False) as file:
        return file.read(MAX_FILE_BYTES + 1)


def _identity(status: os.stat_result) -> Identity:
    return status.st_mtime_ns, status.st_ino, status.st_size
