"""VLLM_PLUGINS: the list of plugins that vLLM may load.

vLLM loads endpoint plugins only if the list names them, and, once there is a list, nothing
that it does not name. So an engine with a profile needs `orch` in it, next to all that would
have been loaded anyway: the plugins of all other groups, and no endpoint plugin of another
package, because those open HTTP routes and vLLM leaves the choice to the operator. The list is
one for all groups. A name that another package gives to an endpoint plugin is therefore left
out, even if a plugin of another group has it, too: a plugin that is missing is seen and can be
named, a route that is open is not seen.

`ensure` runs before vLLM reads the list: at interpreter start by the distribution's
`orch_vllm_plugin.pth`, and once more from the general plugin, for installations whose `.pth`
files are not read (PYTHONPATH). It imports nothing but the standard library.
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
    """Puts `orch` on the list if a profile is selected; leaves everything else alone."""
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
    """The names of the plugins that vLLM loads by default, and of those that open routes."""
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
        "orch: these plugins of vLLM are not loaded, because an endpoint plugin has the same name "
        "and would open HTTP routes: %s; to load both, set %s to all names that are wanted",
        ", ".join(left_out),
        PLUGINS_VARIABLE,
    )
