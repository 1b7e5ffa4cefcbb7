"""`python -m tests.compiled [ARGUMENT...]`: the integration tests on compiled modules.

Compiles what the wheel of `make compiled` has compiled, puts it beside the sources in a copy of the
tree, and runs pytest there with the arguments, by default those of `make test-integration` and some
unit tests. Before, it compares what is decided of simulated traffic and of random events with the
decisions of the interpreted modules.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Final

from orch_sidecar.tools.compiled import compiled, modules

ROOT: Final = Path(__file__).parents[1]
COPIED: Final = ("orch_sidecar", "vllm_plugin", "profiles", "k8s", "docs", "tests")
# Beside the integration tests, those whose rooms are compiled and that replace nothing in them.
TESTED: Final = (
    "tests/integration",
    *(f"tests/orch_sidecar/{room}" for room in ("api", "auth", "splitting")),
    *(
        f"tests/orch_sidecar/admission/test_{name}.py"
        for name in ("claim_calls", "claims", "controller_engine", "fair_queue", "keys_share")
    ),
    *(f"tests/orch_sidecar/pools/test_{name}.py" for name in ("affinity", "candidates", "routing")),
)
ARGUMENTS: Final = ("-q", "-m", "not long and not engine", *TESTED)
WARNING: Final = "ignore:the (type, exc, tb) signature of throw() is deprecated:DeprecationWarning"
"""How mypyc (2.4.1) throws what cancels a task; from Python 3.12 on, each time a warning."""
DECIDING: Final = (
    "orch_sidecar simulate --json --seconds 120 --seed 7",
    "orch_sidecar simulate --json --seconds 60 --seed 8 --load 1.5 --slo-ms 150 --prompt 2000",
    "orch_sidecar simulate --json --seconds 120 --seed 9 --kv-tokens 20000 --bulk-clients 40",
    "orch_sidecar simulate --json --seconds 120 --seed 10 --profile offline",
    f"tests.orch_sidecar.admission.random_log {' '.join(map(str, range(30)))}",
)
"""Programs that print decisions."""


def settings() -> dict[str, list[str]]:
    """Returns the rooms that are compiled, and their modules that are not."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    hook = project["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]
    return {name: hook[name] for name in ("rooms", "interpreted")}


def copied(tree: Path) -> Path:
    """Returns a copy of this tree with the compiled modules beside their sources."""
    for name in COPIED:
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in ROOT.glob("*.*"):
        if path.is_file():
            shutil.copy(path, tree / path.name)
    shutil.copytree(compiled(ROOT, modules(ROOT, **settings())), tree, dirs_exist_ok=True)
    return tree


def decisions(tree: Path, program: str) -> bytes:
    """Returns what a program prints with the modules of a tree."""
    command = [sys.executable, "-m", *program.split()]
    environ = os.environ | {"PYTHONPATH": str(tree)}
    return subprocess.run(command, cwd=tree, env=environ, capture_output=True, check=True).stdout


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        tree = copied(Path(folder))
        for program in DECIDING:
            if decisions(tree, program) != decisions(ROOT, program):
                print(f"the compiled modules decide otherwise than the interpreted ones: {program}")
                return 1
        print("compiled and interpreted modules decide alike", flush=True)
        command = [sys.executable, "-m", "pytest", "-W", WARNING, *(sys.argv[1:] or ARGUMENTS)]
        environ = os.environ | {"PYTHONPATH": str(tree)}
        return subprocess.run(command, cwd=tree, env=environ, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
