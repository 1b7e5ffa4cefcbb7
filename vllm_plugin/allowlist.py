"""VLLM_PLUGINS: the list of plugins that vLLM may load.

vLLM loads endpoint plugins only if the list names them, and, once there is a list, nothing
that it does not name. So whoever selects a profile needs `orch` in it, next to all that would
have been loaded anyway. `ensure` runs before vLLM reads the list: at interpreter start by the
distribution's `orch_vllm_plugin.pth`, and once more from the general plugin, for installations
whose `.pth` files are not read (PYTHONPATH). It imports nothing but the standard library.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from importlib.metadata import entry_points
from typing import Final

NAME: Final = "orch"
PROFILE_VARIABLE: Final = "ORCH_PROFILE"
PLUGINS_VARIABLE: Final = "VLLM_PLUGINS"


def ensure(environ: MutableMapping[str, str]) -> None:
    """Puts `orch` on the list if a profile is selected; leaves everything else alone."""
    if not environ.get(PROFILE_VARIABLE):
        return
    given = environ.get(PLUGINS_VARIABLE)
    if given is None:
        points = entry_points()
        names = {
            point.name
            for group in points.groups
            if group.startswith("vllm.")
            for point in points.select(group=group)
        }
        environ[PLUGINS_VARIABLE] = ",".join(sorted(names | {NAME}))
    elif NAME not in given.split(","):
        environ[PLUGINS_VARIABLE] = f"{given},{NAME}" if given else NAME
