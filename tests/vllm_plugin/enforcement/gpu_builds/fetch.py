"""Writes the records of releases of vLLM's GPU build, without downloading or running them.

    python -m tests.vllm_plugin.enforcement.gpu_builds.fetch 0.32.0 0.33.0

pip finds the wheel, with its configured index, certificates and proxy; of hundreds of megabytes
only the zip's directory and the files of HOOKS are read. Run it on Linux x86-64, for which the
wheels are built. It is not part of the test run.

pip has no public API; the calls follow its `index versions` command.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing
from optparse import Values
from typing import Final
from zipfile import ZipFile

from pip._internal.commands.index import IndexCommand
from pip._internal.models.link import Link
from pip._internal.network.session import PipSession

from tests.vllm_plugin.enforcement.gpu_builds import record
from tests.vllm_plugin.enforcement.gpu_builds.ranges import open_ranges
from vllm_plugin.enforcement import hooks
from vllm_plugin.enforcement.hooks import Symbols, parse_symbols

_PACKAGE: Final = "vllm"
_UNCHANGED: Final = {"Accept-Encoding": "identity", "Cache-Control": "no-cache"}


class NotFetched(RuntimeError):
    """The index has no such wheel, or its server does not support range requests."""


class RemoteWheel:
    """A wheel on a server that answers range requests."""

    def __init__(self, session: PipSession, link: Link) -> None:
        self._session = session
        self._url = link.url_without_fragment
        self.bytes_read = 0

    def size(self) -> int:
        """Returns the wheel's length in bytes. Raises NotFetched if the server omits it."""
        response = self._session.request("HEAD", self._url, headers=_UNCHANGED)
        if response.status_code != 200 or "Content-Length" not in response.headers:
            raise NotFetched(f"{self._url}: no Content-Length, status {response.status_code}")
        return int(response.headers["Content-Length"])

    def read_range(self, start: int, stop: int) -> bytes:
        """Returns bytes start to stop - 1. Raises NotFetched if the server ignores the range."""
        headers = _UNCHANGED | {"Range": f"bytes={start}-{stop - 1}"}
        response = self._session.request("GET", self._url, headers=headers, stream=True)
        with closing(response):
            if response.status_code != 206:
                raise NotFetched(
                    f"{self._url}: the server ignores Range, status {response.status_code}"
                )
            part = bytes(response.content)
        if len(part) != stop - start:
            raise NotFetched(f"{self._url}: {len(part)} bytes instead of {stop - start}")
        self.bytes_read += len(part)
        return part


def wheel_links(command: IndexCommand, options: Values, session: PipSession) -> dict[str, Link]:
    """Returns the wheels on the configured indexes that fit this machine, by version."""
    finder = command._build_package_finder(options, session)
    return {
        str(candidate.version): candidate.link
        for candidate in finder.find_all_candidates(_PACKAGE)
        if candidate.link.is_wheel and candidate.link.scheme.startswith("http")
    }


def fetch(session: PipSession, version: str, link: Link) -> tuple[record.Record, int]:
    """Returns the record of a release, and the number of bytes read for it."""
    wheel = RemoteWheel(session, link)
    with open_ranges(wheel.size(), wheel.read_range) as file, ZipFile(file) as archive:
        members = set(archive.namelist())

        def symbols_of(file: str) -> Symbols | None:
            member = f"{_PACKAGE}/{file}"
            return parse_symbols(archive.read(member).decode()) if member in members else None

        files = record.collect(symbols_of)
    found = record.Record(
        version=version,
        wheel=link.filename,
        sha256=link.hash if link.hash_name == "sha256" else None,
        files=files,
    )
    return found, wheel.bytes_read


def main(versions: Sequence[str]) -> int:
    """Writes a record for each version, and prints which hooks it has."""
    command = IndexCommand("index", "vLLM's releases")
    options, _ = command.parse_args(["versions", _PACKAGE])
    complete = True
    with command._build_session(options) as session:
        links = wheel_links(command, options, session)
        for version in versions:
            if version not in links:
                raise NotFetched(f"no wheel of {_PACKAGE} {version} for this machine")
            found, bytes_read = fetch(session, version, links[version])
            text, has_all = hooks.report(version, hooks.check(found.symbols_of))
            complete = complete and has_all
            print(f"{text}\n{record.write(found)}: {bytes_read / 1e6:.1f} MB read of {found.wheel}")
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
