"""The files of API keys and of the secret for salts; the former is read whenever it has changed.

Kubernetes swaps a link when a Secret changes, so a path can refer to another file at any time.
Inspecting the file blocks and changes no state; the result is accepted on the event loop.
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

# Modification time, inode and size of a file. None: it does not exist.
Identity = tuple[int, ...] | None

_UNREADABLE: Final = ()
_MISSING: Final = (
    "does not exist: make it with `orch key`, or set api_keys_required to false "
    "(ORCH_API_KEYS_REQUIRED) to serve every client without a key until it does"
)
_MIN_SECRET_BYTES: Final = 32
# Other things than files can be opened, and reading them could block until there is a writer.
_CONTENTS: Final = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


@dataclass(frozen=True, slots=True)
class Inspection:
    """What was found at the path: usable keys, an error, or no file."""

    identity: Identity
    keys: Keys | None = None
    error: InvalidKeyFile | None = None


class KeyFile:
    """A key file, and the version of it that was last accepted."""

    def __init__(self, path: Path, *, required: bool = True) -> None:
        """`required`: it is an error that the file does not exist."""
        self.path = path
        self._required = required
        self._reader = FileReader(f"api_keys_file {path}")
        self._accepted: Identity = None
        self._existed = False

    def read_at_start(self) -> Keys | None:
        """Reads the keys at start. None: no file, and none required. Raises InvalidKeyFile."""
        try:
            keys = self.accept(self._reader.read_at_start(self.inspect))
        except ReadTimeout as late:
            raise InvalidKeyFile(str(late)) from None
        if keys is None:
            logger.warning(
                "api_keys_file %s does not exist, and api_keys_required is false: every client is "
                "served without an API key",
                self.path,
            )
        else:
            logger.info("api_keys_file %s: read %d API keys", self.path, len(keys))
        return keys

    async def read(self) -> Keys | None:
        """Reads the keys. None: the file does not exist and never has.

        Raises InvalidKeyFile if the file cannot be used, or was removed.
        """
        return await self._read(self.inspect)

    async def read_if_changed(self) -> Keys | None:
        """Reads the keys if the file has changed, else returns None. Raises as `read` does."""
        return await self._read(self.inspect_if_changed)

    def inspect(self) -> Inspection:
        """Reads and parses the file. Blocks."""
        try:
            # Non-blocking: the other end of a FIFO may never be opened.
            opened = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
            try:
                status = os.fstat(opened)  # not of the path, which may refer to another by now
                kind = _CONTENTS.get(stat.S_IFMT(status.st_mode))
                content = b"" if kind else _content(opened)
            finally:
                os.close(opened)
        except FileNotFoundError:
            if self._existed:
                return Inspection(None, error=self._error("no longer exists"))
            if os.path.lexists(self.path):
                return Inspection(None, error=self._error("is a broken link"))
            if self._required:
                return Inspection(None, error=self._error(_MISSING))
            return Inspection(None)
        except OSError as error:
            return self._unreadable(error)
        identity = _identity(status)
        if kind:
            return Inspection(identity, error=self._error(f"is {kind}, but must be a regular file"))
        if len(content) > MAX_FILE_BYTES:
            return Inspection(identity, error=self._error(f"is larger than {MAX_FILE_BYTES} bytes"))
        try:
            return Inspection(identity, parse(content.decode()))
        except UnicodeDecodeError:
            return Inspection(identity, error=self._error("is not valid UTF-8"))
        except InvalidKeyFile as invalid:
            return Inspection(identity, error=self._error(str(invalid)))

    def inspect_if_changed(self) -> Inspection | None:
        """Reads and parses the file; None if it is the version that was last accepted. Blocks."""
        try:
            identity: Identity = _identity(self.path.stat())
        except FileNotFoundError:
            identity = None
        except OSError as error:
            return self._unreadable(error)
        return None if identity == self._accepted else self.inspect()

    def accept(self, inspection: Inspection) -> Keys | None:
        """Returns the keys that were found, and remembers the version. Raises InvalidKeyFile."""
        self._accepted = inspection.identity
        if inspection.error is not None:
            raise inspection.error
        self._existed = self._existed or inspection.keys is not None
        return inspection.keys

    async def _read(self, inspect: Callable[[], Inspection | None]) -> Keys | None:
        try:
            found = await self._reader.read(inspect)
        except ReadTimeout as late:
            self._accepted = _UNREADABLE
            raise InvalidKeyFile(str(late)) from None
        return None if found is None else self.accept(found)

    def _unreadable(self, error: OSError) -> Inspection:
        problem = self._error(f"cannot be read: {error.strerror or error}")
        return Inspection(_UNREADABLE, error=problem)

    def _error(self, problem: str) -> InvalidKeyFile:
        return InvalidKeyFile(f"api_keys_file {self.path} {problem}")


def read_secret(path: Path | None, *, keys: bool) -> bytes:
    """Returns the secret in `cache_salt_file`, else a random one. Raises ValueError."""
    if path is None:
        if keys:
            logger.info(
                "cache_salt_file is not set: the prefix cache starts cold with each start of this "
                "sidecar, and other sidecars do not share it unless all have the same file"
            )
        return os.urandom(_MIN_SECRET_BYTES)
    try:
        secret = path.read_bytes().strip()
    except OSError as error:
        raise ValueError(f"cache_salt_file {path} cannot be read: {error.strerror}") from None
    if len(secret) < _MIN_SECRET_BYTES:
        rule = f"must have at least {_MIN_SECRET_BYTES}: `openssl rand -hex 32` makes them"
        raise ValueError(f"cache_salt_file {path} has {len(secret)} bytes, but {rule}")
    return secret


def _content(opened: int) -> bytes:
    with os.fdopen(opened, "rb", closefd=False) as file:
        return file.read(MAX_FILE_BYTES + 1)


def _identity(status: os.stat_result) -> Identity:
    return status.st_mtime_ns, status.st_ino, status.st_size
