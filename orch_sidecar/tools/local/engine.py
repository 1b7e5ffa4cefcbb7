"""`orch engine`: runs vLLM's OpenAI server under a profile.

Replaces this process by vLLM's, with ORCH_PROFILE set and the remaining arguments unchanged; the
plugin in that process enforces the profile. It runs `vllm_plugin.serve` instead of the `vllm`
script because of the CPU build: see there.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import MutableMapping
from importlib.util import find_spec
from typing import Final

from vllm_plugin.contracts import profile as profiles

NO_VLLM: Final = (
    "vLLM is not installed: pip install 'vllm>=0.32,<0.34', or on a machine without a GPU, in a "
    "checkout of this project, make install"
)
SERVER: Final = ("-m", "vllm_plugin.serve")  # takes the arguments of `vllm serve`


def environment(environ: MutableMapping[str, str], profile: str) -> None:
    """Sets the variables that an engine process needs."""
    environ["ORCH_PROFILE"] = profile
    environ.setdefault("VLLM_NO_USAGE_STATS", "1")


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the arguments that are not for vLLM."""
    found = argparse.ArgumentParser(
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
    chosen, rest = parser().parse_known_args(arguments)
    profiles.load(chosen.profile)
    if find_spec("vllm") is None:
        sys.exit(f"orch engine: {NO_VLLM}")
    environment(os.environ, chosen.profile)
    # Running the operator's own arguments is the purpose of this command.
    os.execv(sys.executable, [sys.executable, *SERVER, *rest])  # noqa: S606
