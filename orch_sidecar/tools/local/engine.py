"""`orch engine`: vLLM's OpenAI server under a profile.

Replaces this process by vLLM's, with ORCH_PROFILE set and the rest of the arguments as given;
the plugin in that process enforces the profile. That it is not the `vllm` script is for the build
for CPUs: see `vllm_plugin.serve`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import MutableMapping
from importlib.util import find_spec
from typing import Final

from vllm_plugin import profile as profiles

NO_VLLM: Final = (
    "vLLM is not installed here: pip install 'vllm>=0.32,<0.34'; on a machine without a GPU, in a "
    "checkout of this project: make install"
)
SERVER: Final = ("-m", "vllm_plugin.serve")  # arguments follow as after `vllm serve`


def environment(environ: MutableMapping[str, str], profile: str) -> None:
    """What an engine process needs in its environment."""
    environ["ORCH_PROFILE"] = profile
    environ.setdefault("VLLM_NO_USAGE_STATS", "1")


def main(words: list[str]) -> None:
    """Runs vLLM; does not return."""
    parser = argparse.ArgumentParser(
        prog="orch engine",
        description=(
            "Runs `vllm serve` under a profile. All other arguments go to vLLM; those that "
            "contradict the profile stop it with one message that lists them."
        ),
        epilog="example: orch engine --profile cloud ./model --max-num-seqs 32 --port 8000",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--profile",
        default=os.environ.get("ORCH_PROFILE", "home"),
        help="home, cloud, offline, or the path of a YAML file (default: ORCH_PROFILE, or home)",
    )
    chosen, rest = parser.parse_known_args(words)
    profiles.load(chosen.profile)
    if find_spec("vllm") is None:
        sys.exit(f"orch engine: {NO_VLLM}")
    environment(os.environ, chosen.profile)
    # The arguments are the operator's own; this is what the command is for.
    os.execv(sys.executable, [sys.executable, *SERVER, *rest])  # noqa: S606
