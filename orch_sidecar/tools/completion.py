"""`orch completion`: the scripts by which a shell completes the commands of `orch`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

_HELP: Final = """Prints the completion script of a shell. To install it:

  orch completion bash > ~/.local/share/bash-completion/completions/orch
  orch completion zsh > ~/.zfunc/_orch     (~/.zfunc must be in fpath)"""
_NO_SHTAB: Final = "it needs shtab: pip install shtab"


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    form = argparse.RawDescriptionHelpFormatter
    found = argparse.ArgumentParser(prog="orch completion", description=_HELP, formatter_class=form)
    found.add_argument("shell", choices=("bash", "zsh"))
    return found


def script(arguments: list[str], commands: Callable[[], argparse.ArgumentParser]) -> str:
    """Returns the script. `commands`: makes the parser of all commands; it imports all of them."""
    shell = parser().parse_args(arguments).shell
    try:
        import shtab
    except ImportError:
        sys.exit(f"orch completion: {_NO_SHTAB}")
    found = commands()
    _complete_paths(found, shtab.FILE)
    text: str = shtab.complete(found, shell)
    return text


def _complete_paths(parser: argparse.ArgumentParser, files: Any) -> None:
    """Lets arguments that are paths be completed by the names of files."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                _complete_paths(each, files)
        elif action.type is Path or action.metavar in ("FILE", "HTML", "JSON"):
            action.complete = files  # type: ignore[attr-defined]  # shtab's attribute
