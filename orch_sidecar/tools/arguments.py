"""What commands have in common: how they end, help as written, numbers for argparse's `type`, and
the options that several of them have.

Each function that returns a number raises argparse's ArgumentTypeError with the value and the rule.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NoReturn

from orch_sidecar.tools.terminal import print_error

# Beyond it a number is a typing error.
_LIMIT: Final = 1e12

SLO_TIMES: Final = {
    "ttft": "time to first token",
    "tpot": "time per output token",
    "latency": "latency, to the last token",
}

# A seed must fit in 64 bits.
_MAX_DIGITS: Final = 18


class Unavailable(Exception):
    """What a command needs does not answer or cannot be used, or what it would do is refused; the
    message gives the reason."""


def run_command(name: str, work: Callable[[], int]) -> None:
    """Does the work of a command, and prints the error that ends it.

    Exits with the code that the work returns, if that is not 0; with 1 for what is unavailable, and
    with 2 for files and values that are not as they must be.
    """
    try:
        code = work()
    except KeyboardInterrupt:
        why, code = "interrupted", 1
    except Unavailable as error:
        why, code = str(error), 1
    except MemoryError:
        why, code = "the input is too large for the memory of this machine", 2
    except (OSError, ValueError, ArithmeticError) as error:
        why, code = str(error), 2
        if isinstance(error, OSError) and error.filename:
            why = f"{error.filename}: {error.strerror}"
    else:
        why = ""
    if why:
        print_error(f"{name}: {why}")
    if code:
        sys.exit(code)


class TextParser(argparse.ArgumentParser):
    """A parser whose help keeps the line breaks of its description and epilog; so do those of its
    commands."""

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **options)


class OneLineParser(argparse.ArgumentParser):
    """A parser whose errors are one line, without the usage above it."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def add_profile(parser: argparse.ArgumentParser, use: str) -> None:
    """Adds `--profile`, by default cloud. `use`: what is done with it."""
    parser.add_argument(
        "--profile", default="cloud",
        help=f"{use}: the name of a shipped profile, or a path; default: %(default)s",
    )  # fmt: skip


def add_slo(group: argparse._ActionsContainer, *times: str) -> None:
    """Adds the bounds of an SLO. `times`: their names, of those in SLO_TIMES."""
    for time in times:
        text = f"bound of the {SLO_TIMES[time]}"
        group.add_argument(f"--slo-{time}-ms", type=positive, metavar="MS", help=text)


def slo_of(options: argparse.Namespace) -> dict[str, float]:
    """Returns the bounds in ms that `add_slo` has added, by the names of their times."""
    return given(options, {time: f"slo_{time}_ms" for time in SLO_TIMES})


def given(options: argparse.Namespace, names: Mapping[str, str]) -> dict[str, Any]:
    """Returns the values that some options have, by other names."""
    found = {name: getattr(options, option, None) for name, option in names.items()}
    return {name: value for name, value in found.items() if value is not None}


def add_lengths(group: argparse._ActionsContainer, prompt: int, answer: int | None) -> None:
    """Adds the lengths of synthetic requests. `answer`: None for a default that depends."""
    add, text = group.add_argument, "length of synthetic prompts; default: %(default)s"
    add("--input-tokens", type=count, default=prompt, metavar="N", help=text)
    otherwise = "the file's, or 128" if answer is None else "%(default)s"
    text = f"length of answers; default: {otherwise}"
    add("--output-tokens", type=count, default=answer, metavar="N", help=text)


def add_seed(
    group: argparse._ActionsContainer, default: int = 0, of: str = "arrivals and prompts"
) -> None:
    """Adds `--seed`. `of`: what is drawn from it."""
    text = f"of {of}; default: %(default)s"
    group.add_argument("--seed", type=count_or_zero, default=default, metavar="N", help=text)


def add_plot(group: argparse._ActionsContainer, default: Path | None = None) -> None:
    """Adds `--plot`."""
    text = "write a plot: .png or .svg" + ("" if default is None else "; default: %(default)s")
    group.add_argument("--plot", type=PLOT, default=default, metavar="FILE", help=text)


def file_of(*suffixes: str) -> Callable[[str], Path]:
    """Returns what parses the path of a file that ends so: no other kind is taken for one, and
    overwritten."""

    def parsed(text: str) -> Path:
        path = Path(text)
        if path.suffix.lower() not in suffixes:
            raise argparse.ArgumentTypeError(f"{text!r} must end in {' or '.join(suffixes)}")
        return path

    return parsed


PLOT: Final = file_of(".png", ".svg")


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


def counts(text: str) -> tuple[int, ...]:
    """Returns the distinct integers from 1 of a text, which commas separate, in ascending order."""
    return tuple(sorted({count(part) for part in text.split(",")}))
