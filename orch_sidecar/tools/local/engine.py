"""`orch engine`: runs vLLM's OpenAI server under a profile.

Replaces this process by vLLM's, with ORCH_PROFILE set and the remaining arguments unchanged; the
plugin in that process enforces the profile. It runs `vllm_plugin.serve` instead of the `vllm`
script because of the CPU build: see there.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import MutableMapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from orch_sidecar.tools.arguments import OneLineParser
from vllm_plugin.contracts import profile as profiles
from vllm_plugin.contracts.vllm_arguments import contradiction, contradictions, value_of

NO_VLLM: Final = (
    "vLLM is not installed: pip install 'vllm>=0.32,<0.34', or on a machine without a GPU, in a "
    "checkout of this project, make install"
)
SERVER: Final = ("-m", "vllm_plugin.serve")  # takes the arguments of `vllm serve`


def environment(environ: MutableMapping[str, str], profile: str) -> None:
    """Sets the variables that an engine process needs."""
    environ["ORCH_PROFILE"] = profile
    environ.setdefault("VLLM_NO_USAGE_STATS", "1")


def objections(
    arguments: Sequence[str], profile: profiles.Profile, model: str | None, slots: int | None = None
) -> list[str]:
    """Returns what is wrong in vLLM's arguments, as far as that is known without vLLM."""
    found = contradictions(arguments, profile)
    if slots is not None and (text := contradiction("slots", slots, profile.slots)):
        found.append(text)
    found = [f"{text} in profile {profile.name!r} ({profile.measurement_type})" for text in found]
    port = value_of(arguments, "--port")
    if port is not None and not (port.isdecimal() and int(port) < 2**16):
        found.append(f"--port is {port!r}, must be an integer from 0 to 65535")
    model = value_of(arguments, "--model") or model or ""
    is_path = model.startswith((".", "/", "~")) or model.count("/") > 1
    if is_path and "://" not in model and not Path(model).exists():
        found.append(f"the model is {model!r}, must be a directory that exists, or a hub's name")
    return found


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the arguments that are not for vLLM."""
    found = OneLineParser(
        prog="orch engine",
        description=(
            "Runs `vllm serve` under a profile. All other arguments are passed to vLLM; if any "
            "contradict the profile, it exits with a message that lists them. Sidecars on other "
            "hosts need the same key in ORCH_SIDECAR_KEY as the engine."
        ),
        epilog="example: orch engine --profile cloud ./model --max-num-seqs 32 --port 8000",
        allow_abbrev=False,
    )
    found.add_argument(
        "--profile",
        default=os.environ.get("ORCH_PROFILE", "home"),
        help="home, cloud, offline, or the path of a YAML file (default: ORCH_PROFILE, or home)",
    )
    return found


def main(arguments: list[str]) -> None:
    """Runs vLLM; does not return."""
    own = parser()
    chosen, rest = own.parse_known_args(arguments)
    model = rest[0] if rest and not rest[0].startswith("-") else None
    if found := objections(rest, profiles.load(chosen.profile), model):
        own.error("; ".join(found))
    if find_spec("vllm") is None:
        sys.exit(f"orch engine: {NO_VLLM}")
    environment(os.environ, chosen.profile)
    # Running the operator's own arguments is the purpose of this command.
    os.execv(sys.executable, [sys.executable, *SERVER, *rest])  # noqa: S606
