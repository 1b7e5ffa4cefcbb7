"""Stores the content of files with `fsspec`: in a local directory, or by URL in S3 and the like.

All methods block: they are for threads. A file is known to nobody before the database names it, so
what a broken upload leaves behind is only removed, never read.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import BinaryIO, Final

import fsspec
from fsspec.implementations.local import LocalFileSystem

_FILES: Final = "files"
_UNFINISHED: Final = ".part"
# No upload takes as long: what is older is of a process that was killed.
_ABANDONED_AFTER_S: Final = 86_400
_NAMES_AT_ONCE: Final = 500  # whose records are looked up in one transaction


class StoreFault(OSError):
    """The file system of the store has failed."""


@contextmanager
def _faults() -> Iterator[None]:
    """Raises what fails as a StoreFault: the libraries of S3 and the like have errors of their own.
    That there is no such file is none."""
    try:
        yield
    except FileNotFoundError:
        raise
    except Exception as error:
        raise StoreFault(str(error) or type(error).__name__) from error


class Opened:
    """A file that is read."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.close = file.close

    @_faults()
    def read(self, size: int) -> bytes:
        """Returns its next bytes, none at its end. Raises StoreFault."""
        return self._file.read(size)


class FileStore:
    """Files by their ids, below one directory or URL."""

    def __init__(self, url: str) -> None:
        """Raises OSError or ValueError if it cannot be used, ImportError without its library."""
        self._system, root = fsspec.core.url_to_fs(url)
        self.local = isinstance(self._system, LocalFileSystem)
        self._folder = PurePosixPath(root) / _FILES
        if self.local:
            self._system.makedirs(str(self._folder), exist_ok=True)

    @contextmanager
    def writer(self, name: str) -> Iterator[Callable[[bytes], object]]:
        """Opens a new file, to be written by what this yields: whole, or not at all. Raises
        StoreFault."""
        path = self._path(name)
        # S3 shows a file once all of it is there.
        unfinished = f"{path}.{os.urandom(4).hex()}{_UNFINISHED}" if self.local else path
        with _faults():
            file = self._system.open(unfinished, "wb")
        try:
            yield _faults()(file.write)
            with _faults():
                if self.local:
                    file.flush()
                    os.fsync(file.fileno())
                file.close()
                if self.local:
                    self._system.mv(unfinished, path)
        except BaseException:
            # The error that is raised is the first one; where a disk is full, closing fails, too.
            with contextlib.suppress(OSError), _faults():
                file.close()
            with contextlib.suppress(OSError), _faults():
                self._system.rm_file(unfinished)
            raise

    @_faults()
    def open(self, name: str) -> Opened:
        """Opens a file to be read. Raises FileNotFoundError or StoreFault."""
        return Opened(self._system.open(self._path(name), "rb"))

    @_faults()
    def read(self, name: str, begin: int, end: int) -> bytes:
        """Returns a part of a file. Raises FileNotFoundError or StoreFault."""
        part: bytes = self._system.cat_file(self._path(name), start=begin, end=end)
        return part

    @_faults()
    def delete(self, name: str) -> None:
        """Deletes a file, if there is one. Raises StoreFault."""
        with contextlib.suppress(FileNotFoundError):
            self._system.rm_file(self._path(name))

    @_faults()
    def remove_abandoned(self, unknown: Callable[[Sequence[str]], list[str]]) -> None:
        """Removes what killed processes have left: unfinished files, and those that `unknown`
        returns. Files that are not old may be of one that is about to make them known. Raises
        StoreFault."""
        self._system.invalidate_cache()
        try:
            paths = self._system.ls(str(self._folder), detail=False)
        except FileNotFoundError:  # S3 has no empty folders
            return
        names = [PurePosixPath(each).name for each in paths]
        whole = [each for each in names if not each.endswith(_UNFINISHED)]
        left = [each for each in names if each.endswith(_UNFINISHED)]
        for first in range(0, len(whole), _NAMES_AT_ONCE):
            left += unknown(whole[first : first + _NAMES_AT_ONCE])
        for path in map(self._path, left):
            with contextlib.suppress(FileNotFoundError):  # another sidecar was first
                if time.time() - self._system.modified(path).timestamp() > _ABANDONED_AFTER_S:
                    self._system.rm_file(path)

    def _path(self, name: str) -> str:
        return str(self._folder / name)
