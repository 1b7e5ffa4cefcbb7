"""Writes the lock of the packages that the pinned image of vLLM ships.

    python -m tests.k8s.lock

The image installs the release's wheel with its requirements, on the day of the release; so the
lock is what its requirements resolve to for that Python and platform with nothing newer than that
day. uv resolves (pip install uv): it reads of each wheel what it needs, and downloads none. The
index is the one that uv is configured with. Not part of the test run.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

VLLM: Final = "0.32.0"
# The day after that on which its wheels were published. The image of a release is of that day.
BEFORE: Final = "2026-10-19T00:00:00Z"
PYTHON: Final = "3.12"
PLATFORM: Final = "x86_64-manylinux_2_28"

LOCK: Final = Path(__file__).with_name("image_packages.txt")
_HEAD: Final = f"""\
# The packages that vllm/vllm-openai:v{VLLM} ships: what vLLM {VLLM} requires, resolved as of its
# release for Python {PYTHON} on x86-64. Written by `python -m tests.k8s.lock`, which runs:
#
#   {{command}}
"""


def command() -> list[str]:
    """What resolves, reading the requirement from standard input."""
    return [
        *("uv", "pip", "compile", "-", "--python-version", PYTHON, "--python-platform", PLATFORM),
        *("--exclude-newer", BEFORE, "--no-annotate", "--no-header", "--quiet"),
    ]


def head() -> str:
    """The comment that states how the lock was made."""
    return _HEAD.format(command=f"echo vllm=={VLLM} | {' '.join(command())}")


def main() -> None:
    """Resolves and writes. Raises CalledProcessError with uv's message on standard error."""
    resolved = subprocess.run(
        command(), input=f"vllm=={VLLM}\n", stdout=subprocess.PIPE, text=True, check=True
    )
    LOCK.write_text(head() + resolved.stdout, encoding="utf-8")
    print(f"{LOCK}: {len(resolved.stdout.splitlines())} packages")


if __name__ == "__main__":
    main()
