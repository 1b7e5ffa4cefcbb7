"""Builds what a checkout does not contain, on demand below ``.cache/bench-proxy/``: the C programs,
the Rust routers and the sampler.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SOURCES = Path(__file__).resolve().parent
CACHE = SOURCES.parents[2] / ".cache" / "bench-proxy"
ROUTERS = {"vllm-router": "0.1.17", "sglang-router": "0.3.2"}
TOOLS = {"py-spy": "0.4.3"}
"""All are on PyPI."""


class BuildFailed(Exception):
    """A tool is missing or refused; the message says which and why."""


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise BuildFailed(f"{command[0]}: {error}") from error
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no output"]
        raise BuildFailed(f"{Path(command[0]).name} failed: {last[0]}")


def cache() -> Path:
    """The cache folder, which keeps itself out of git."""
    CACHE.mkdir(parents=True, exist_ok=True)
    (CACHE / ".gitignore").write_text("*\n")
    return CACHE


def program(name: str) -> Path:
    """Compiles ``NAME.c`` unless the binary is newer than every source.

    Raises:
        BuildFailed: no ``cc``, or it reports an error.
    """
    binary = cache() / name
    sources = [SOURCES / f"{name}.c", *SOURCES.glob("*.h")]
    if binary.exists() and binary.stat().st_mtime > max(s.stat().st_mtime for s in sources):
        return binary
    _run(["cc", "-O2", "-Wall", "-o", str(binary), str(sources[0])])
    return binary


def router(name: str) -> Path:
    """The router's executable, in an environment that both routers share.

    Raises:
        BuildFailed: the environment or the installation failed, for example offline.
    """
    return _installed("routers", ROUTERS) / name


def tool(name: str) -> Path:
    """A tool's executable, in an environment of its own.

    Raises:
        BuildFailed: the environment or the installation failed, for example offline.
    """
    return _installed(name, {name: TOOLS[name]}) / name


def _installed(name: str, packages: dict[str, str]) -> Path:
    env = cache() / name
    done = env / ".installed"
    pins = [f"{package}=={version}" for package, version in packages.items()]
    if not done.exists() or done.read_text().split() != pins:
        _run([sys.executable, "-m", "venv", "--clear", str(env)])
        _run([str(env / "bin" / "pip"), "install", "--quiet", "--only-binary=:all:", *pins])
        done.write_text("\n".join(pins))
    return env / "bin"
