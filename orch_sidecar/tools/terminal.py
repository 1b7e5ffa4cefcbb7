"""What commands write for people at a terminal: texts, progress, and colour where it is wanted.

Colour and control sequences go to terminals only, never to a file or a pipe. NO_COLOR
(no-color.org) and TERM=dumb turn them off.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
import threading
import time
from contextlib import suppress
from typing import Final, Self, TextIO

# What is over sooner needs no progress.
AFTER_S: Final = 2.0
# A line on a terminal is rewritten so often; in a file a new one follows after so long.
_REWRITE_S: Final = 0.2
_NEXT_LINE_S: Final = 10.0
# An estimate of the time left needs a part of the work.
_LEAST_SHARE: Final = 0.02

_GREEN, _RED, _PLAIN = "\x1b[32m", "\x1b[31m", "\x1b[0m"
_CLEAR: Final = "\r\x1b[K"


def escape_unencodable_output() -> None:
    """Makes stdout and stderr write characters that they cannot encode as escapes, as `\\u2026`.

    A name in a table must not cost the result of a measurement.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def print_json(document: object) -> None:
    print(json.dumps(document, indent=2))


def print_error(text: object) -> None:
    """Prints progress and errors beside the results."""
    print(*map(escaped, str(text).split("\n")), sep="\n", file=sys.stderr, flush=True)


def escaped(text: str) -> str:
    """Returns one line as a terminal may show it: names in a file must not control it."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def is_terminal(stream: TextIO) -> bool:
    """Whether control sequences may be written to a stream."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def good(text: str, stream: TextIO) -> str:
    """Returns a text in the colour of success."""
    return _coloured(_GREEN, text, stream)


def bad(text: str, stream: TextIO) -> str:
    """Returns a text in the colour of failure."""
    return _coloured(_RED, text, stream)


def _coloured(colour: str, text: str, stream: TextIO) -> str:
    wanted = is_terminal(stream) and not os.environ.get("NO_COLOR")
    return f"{colour}{text}{_PLAIN}" if wanted else text


class Progress:
    """Shows what a command does while it takes longer than a moment: on a terminal in one line that
    is rewritten, elsewhere in a line now and then.

    A thread writes, so that work that waits or blocks is shown, too. `share`: of the phase that is
    over, from 0 to 1; None: unknown. `detail`: follows the phase.
    """

    def __init__(
        self, phase: str, stream: TextIO | None = None, *, after_s: float | None = None
    ) -> None:
        """`stream`: stderr by default, so that results can be piped. `after_s`: from then on it is
        shown, AFTER_S by default."""
        self._stream = sys.stderr if stream is None else stream
        self._after_s = AFTER_S if after_s is None else after_s
        self._rewrites = is_terminal(self._stream)
        self._started = self._phase_started = time.monotonic()
        self._phase = phase
        self._written: tuple[str, float] | None = None  # of a file: the phase, and when
        self.share: float | None = None
        self.detail = ""
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ends.set()
        self._thread.join()
        if self._rewrites and self._written is not None:
            self._write(_CLEAR)

    def phase(self, text: str, detail: str = "") -> None:
        """Begins another phase, unless it is the same."""
        if text != self._phase:
            self._phase, self._phase_started, self.share = text, time.monotonic(), None
        self.detail = detail

    def text(self, now: float) -> str:
        """Returns the line at a time of the monotonic clock."""
        share, parts = self.share, [self._phase]
        if self.detail:
            parts.append(f", {self.detail}")
        if share is not None:
            parts.append(f", {share:.0%}")
        times = [f"{now - self._started:.0f} s"]
        if share is not None and _LEAST_SHARE <= share < 1:
            left_s = (now - self._phase_started) * (1 - share) / share
            times.append(f"about {left_s:.0f} s left")
        return f"{''.join(parts)} ({', '.join(times)})"

    def _run(self) -> None:
        while not self._ends.wait(_REWRITE_S):
            now = time.monotonic()
            if now - self._started < self._after_s:
                continue
            if self._rewrites:
                width = shutil.get_terminal_size().columns - 1
                self._write(f"{_CLEAR}{self.text(now)[:width]}")
            elif not self._is_fresh(now):
                self._write(f"{self.text(now)}\n")
            else:
                continue
            self._written = self._phase, now

    def _is_fresh(self, now: float) -> bool:
        """Whether a file has a line of this phase that is not old."""
        written = self._written
        return written is not None and written[0] == self._phase and now - written[1] < _NEXT_LINE_S

    def _write(self, text: str) -> None:
        with suppress(OSError, ValueError):  # nobody reads it any longer
            self._stream.write(text)
            self._stream.flush()
