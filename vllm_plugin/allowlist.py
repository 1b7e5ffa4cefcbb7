"""Adds this plugin to VLLM_PLUGINS, the list of plugins that vLLM may load.

vLLM loads endpoint plugins only if the list names them, and, once there is a list, nothing else.
So an engine with a profile needs `orch` in the list, beside all that would be loaded without one:
the plugins of all other groups, and no endpoint plugin of another package, because those open
HTTP routes, which vLLM leaves to the operator. The list is shared by all groups. The name of
another package's endpoint plugin is therefore left out, even if a plugin of another group has the
same name: the operator notices a missing plugin, but not an open route.

`ensure` runs before vLLM reads the list: at interpreter start by the distribution's
`orch_vllm_plugin.pth`, and again from the general plugin, for installations whose `.pth` files are
not read (PYTHONPATH). It imports nothing but the standard library.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from importlib.metadata import entry_points
from typing import Final

NAME: Final = "orch"
PROFILE_VARIABLE: Final = "ORCH_PROFILE"
PLUGINS_VARIABLE: Final = "VLLM_PLUGINS"
OPT_IN_GROUP: Final = "vllm.endpoint_plugins"


def ensure(environ: MutableMapping[str, str]) -> None:
    """Adds `orch` to the list if a profile is selected; changes nothing otherwise."""
    if not environ.get(PROFILE_VARIABLE):
        return
    given = environ.get(PLUGINS_VARIABLE)
    if given is None:
        names, routes = _installed()
        environ[PLUGINS_VARIABLE] = ",".join(sorted(names - routes | {NAME}))
        if left_out := sorted(names & routes):
            _warn(left_out)
    elif NAME not in given.split(","):
        environ[PLUGINS_VARIABLE] = f"{given},{NAME}" if given else NAME


def _installed() -> tuple[set[str], set[str]]:
    """Returns the names of the plugins that vLLM loads by default, and of endpoint plugins."""
    points = entry_points()
    names = {
        point.name
        for group in points.groups
        if group.startswith("vllm.") and group != OPT_IN_GROUP
        for point in points.select(group=group)
    }
    return names - {NAME}, {point.name for point in points.select(group=OPT_IN_GROUP)} - {NAME}


def _warn(left_out: list[str]) -> None:
    import logging  # costs milliseconds, and this runs at the start of every interpreter

    logging.getLogger("vllm.orch").warning(
        "orch: these vLLM plugins are not loaded, because endpoint plugins of the same name would "
        "open HTTP routes: %s; to load both, set %s to the names of all plugins",
        ", ".join(left_out),
        PLUGINS_VARIABLE,
    )
