"""Parses the command line: numbers, for argparse's `type`, errors in one line, help as written.

Each function raises argparse's ArgumentTypeError with the value and the rule.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, Final, NoReturn

# Beyond it a number is a typing error.
_LIMIT: Final = 1e12

# A seed must fit in 64 bits.
_MAX_DIGITS: Final = 18


class TextParser(argparse.ArgumentParser):
    """A parser whose help keeps the line breaks of its description and epilog; so do those of its
    commands."""

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **options)


class OneLineParser(argparse.ArgumentParser):
    """A parser whose errors are one line, without the usage above it."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def number(text: str, rule: str, is_valid: Callable[[float], bool]) -> float:
    """Returns a finite number that is valid. `rule`: what it must be, for the error."""
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not (abs(value) < _LIMIT and is_valid(value)):
        raise argparse.ArgumentTypeError(f"{text!r} must be {rule}")
    return value


def positive(text: str) -> float:
    """Returns a number above 0."""
    return number(text, "a number above 0", lambda value: value > 0)


def non_negative(text: str) -> float:
    """Returns a number from 0."""
    return number(text, "a number from 0", lambda value: value >= 0)


def share(text: str) -> float:
    """Returns a number from 0 to 1."""
    return number(text, "a number from 0 to 1", lambda value: 0 <= value <= 1)


def count(text: str, least: int = 1) -> int:
    """Returns an integer from `least`, of at most 18 digits."""
    if len(text) > _MAX_DIGITS:
        raise argparse.ArgumentTypeError(f"{text!r} must have at most {_MAX_DIGITS} digits")
    if not (text.isascii() and text.isdigit() and int(text) >= least):
        raise argparse.ArgumentTypeError(f"{text!r} must be an integer from {least}")
    return int(text)


def count_or_zero(text: str) -> int:
    """Returns an integer from 0."""
    return count(text, least=0)
