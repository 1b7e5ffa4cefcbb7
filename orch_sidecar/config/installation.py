"""Says which build of the sidecar is installed."""

from __future__ import annotations

from importlib.metadata import version
from importlib.util import find_spec
from typing import Final

VERSION: Final = version("orch-sidecar")
_ON_THE_WAY: Final = "orch_sidecar.admission.gate"  # of the modules that `make compiled` compiles


def build() -> str:
    """Returns "compiled" if the way of a request is machine code in this installation, made by
    `make compiled`; "pure" if it is interpreted."""
    found = find_spec(_ON_THE_WAY)
    return "compiled" if found is not None and str(found.origin).endswith(".so") else "pure"
