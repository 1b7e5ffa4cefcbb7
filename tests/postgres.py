"""A PostgreSQL server of Debian's package, for tests of what several sidecars share."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

_BINARIES: Final = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))


class Server:
    """A server, on a socket of its own. `url`: of a database."""

    def __init__(self, place: str, as_user: dict[str, Any]) -> None:
        self.url = f"postgresql://orch@/postgres?host={place}"
        self._place = place
        self._as_user = as_user
        self.start()

    def start(self) -> None:
        """Starts it, and waits until it answers."""
        options = ("-k", self._place, "-c", "listen_addresses=", "-F")
        self._running = subprocess.Popen(
            [_BINARIES[-1].parent / "postgres", "-D", f"{self._place}/data", *options],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=self._place, **self._as_user,
        )  # fmt: skip
        ready = [str(_BINARIES[-1].parent / "pg_isready"), "--quiet", "--host", self._place]
        while subprocess.run(ready).returncode:
            assert self._running.poll() is None, "the server of PostgreSQL has ended"
            time.sleep(0.02)

    def stop(self) -> None:
        """Stops it, and ends its connections."""
        self._running.send_signal(signal.SIGINT)
        self._running.wait()


@contextmanager
def server() -> Iterator[Server]:
    """Runs a server. Skips the test where there is none."""
    if not _BINARIES:
        pytest.skip("needs PostgreSQL: apt-get install postgresql")
    binaries = _BINARIES[-1].parent
    place = tempfile.mkdtemp(prefix="orch-postgres-")
    as_user: dict[str, Any] = {}
    if os.geteuid() == 0:  # it refuses to run as root
        shutil.chown(place, "postgres")
        as_user = {"user": "postgres", "group": "postgres", "extra_groups": ()}
    data = f"{place}/data"
    options = ("--auth=trust", "--username=orch", "--no-sync", "--encoding=UTF8")
    subprocess.run(
        [binaries / "initdb", *options, data],
        check=True, stdout=subprocess.DEVNULL, cwd=place, **as_user,
    )  # fmt: skip
    running = Server(place, as_user)
    try:
        yield running
    finally:
        running.stop()
        shutil.rmtree(place)
