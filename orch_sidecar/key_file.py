"""A file of API keys on disk, read at start and again when it is another one.

Kubernetes swaps a link when a Secret changes, so a path may be another file from one moment to
the next. Blocks: after the start it belongs into a thread, one call at a time.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Final

from orch_sidecar.keys import MAX_FILE_BYTES, Keys, KeysWrong, parse

logger = logging.getLogger("orch.sidecar")

# When it was written, which file it is, and its size. None: there is none.
Identity = tuple[int, ...] | None

_UNREADABLE: Final = ()


class KeyFile:
    """One file, and what was last seen of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: Identity = None
        self._had = False

    def begin(self) -> Keys | None:
        """Reads it at start. None: there is no such file, which is said. Raises KeysWrong."""
        keys = self.read()
        if keys is None:
            logger.info(
                "%s (api_keys_file) does not exist: requests are served without API keys", self.path
            )
        else:
            logger.info("%s: %d API keys", self.path, len(keys))
        return keys

    def read(self) -> Keys | None:
        """The keys in it. None: there is no such file, and has been none.

        Raises KeysWrong for a file that cannot be used, or is gone.
        """
        self._seen = _UNREADABLE
        try:
            with self.path.open("rb") as file:
                status = os.fstat(file.fileno())  # of what is read, whatever the path is by now
                content = file.read(MAX_FILE_BYTES + 1)
        except FileNotFoundError:
            self._seen = None
            if self._had:
                raise self._wrong("is gone") from None
            if os.path.lexists(self.path):
                raise self._wrong("is a link to nothing") from None
            return None
        except OSError as error:
            raise self._wrong(f"cannot be read: {error.strerror or error}") from error
        self._seen = _identity(status)
        if len(content) > MAX_FILE_BYTES:
            raise self._wrong(f"is larger than {MAX_FILE_BYTES} bytes")
        try:
            keys = parse(content.decode())
        except UnicodeDecodeError:
            raise self._wrong("is not UTF-8") from None
        except KeysWrong as wrong:
            raise self._wrong(str(wrong)) from None
        self._had = True
        return keys

    def read_if_changed(self) -> Keys | None:
        """The keys in it if it is another file than before, else None. Raises as `read`."""
        identity: Identity
        try:
            identity = _identity(self.path.stat())
        except FileNotFoundError:
            identity = None
        except OSError as error:
            self._seen = _UNREADABLE
            raise self._wrong(f"cannot be read: {error.strerror or error}") from error
        return None if identity == self._seen else self.read()

    def _wrong(self, what: str) -> KeysWrong:
        return KeysWrong(f"api_keys_file {self.path} {what}")


def _identity(status: os.stat_result) -> Identity:
    return status.st_mtime_ns, status.st_ino, status.st_size
