"""Measures how long a server's event loop is blocked while one of its pages is fetched.

A prober asks for `/livez` without a pause: an answer that is late waited for the event loop. What
the machine itself delays is in it, so that the same is measured without a fetch.
"""

from __future__ import annotations

import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

_QUIET_S: Final = 0.5
_PROBE: Final = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Stall:
    """Milliseconds: the longest delay of each fetch (their median, and the most), the median of
    the longest delays in as long a time without a fetch. `size`: of the page, in bytes."""

    median_ms: float
    most_ms: float
    without_ms: float
    size: int
    seconds: float


_FETCH: Final = """
import sys, urllib.request
with urllib.request.urlopen(sys.argv[1], timeout=60) as answer:
    print(len(answer.read()))
"""


def probe(port: int, path: str, times: int) -> Stall:
    """Fetches a page so many times, one after the other."""
    longest, without, sizes, took = [], [], [], []
    command = [sys.executable, "-c", _FETCH, f"http://127.0.0.1:{port}{path}"]
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _longest_ms(connection, _for_s(_QUIET_S))
        for _ in range(times):
            began = time.monotonic()
            with subprocess.Popen(command, stdout=subprocess.PIPE) as fetch:
                longest.append(_longest_ms(connection, lambda: fetch.poll() is None))
                assert fetch.stdout is not None
                sizes.append(int(fetch.stdout.read()))
            took.append(time.monotonic() - began)
            without.append(_longest_ms(connection, _for_s(took[-1])))
    return Stall(
        statistics.median(longest),
        max(longest),
        statistics.median(without),
        sizes[-1],
        statistics.median(took),
    )


def _for_s(seconds: float) -> Callable[[], bool]:
    until = time.monotonic() + seconds
    return lambda: time.monotonic() < until


def _longest_ms(connection: socket.socket, goes_on: Callable[[], bool]) -> float:
    longest = 0.0
    while goes_on():
        sent = time.monotonic()
        connection.sendall(_PROBE)
        answer = connection.recv(65_536)
        if not answer.startswith(b"HTTP/1.1 200"):
            raise ConnectionError(f"the probe was answered with {answer[:80]!r}")
        longest = max(longest, time.monotonic() - sent)
    return 1000 * longest
