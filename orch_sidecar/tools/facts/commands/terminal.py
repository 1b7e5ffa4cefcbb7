"""What is printed, whatever encoding a terminal or a pipe has."""

from __future__ import annotations

import io
import sys


def print_anything() -> None:
    """From now on what the encoding cannot say is written as an escape, as `\\u2026`.

    A name in a table is no reason to lose what was found, or measured for ten minutes.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
