"""Writes the profiles under comparison: the shipped one with a few keys replaced.

All keep the name and measurement type of the shipped profile, which the engine reads, because
engine and sidecar must agree on them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import yaml

from vllm_plugin.contracts import profile

BASE: Final = "cloud"

Values = dict[str, Any]


def _base() -> Values:
    path = profile.directory() / f"{BASE}.yaml"
    document = yaml.safe_load(path.read_text())
    assert isinstance(document, dict)
    return document


def write(directory: Path, name: str, document: Values) -> Path:
    """Writes a profile. Raises ProfileError if it is none."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    profile.load(str(path))
    return path


def policy(slo_ms: float | None, max_wait_s: float) -> Values:
    """The shipped profile with the measured SLO, and a bound that a short run can reach."""
    document = _base()
    document["admission"]["interactive"]["ttft_p95_ms"] = slo_ms
    document["admission"]["bulk"]["max_wait_s"] = max_wait_s
    return document


def fifo(slots: int, max_wait_s: float) -> Values:
    """One class, first come first served, as many as there are slots: nothing to meet."""
    document = _base()
    one_class = {
        "ttft_p95_ms": None,
        "tpot_p95_ms": None,
        "queue_capacity": 1024,
        "max_wait_s": max_wait_s,
        "batch": {"least": 1, "most": slots},
    }
    document["admission"] |= {
        "coalescing": False,
        "interactive": one_class,
        "bulk": dict(one_class),
    }
    return document


def batch_of(most: int) -> Values:
    """So many at once of either class."""
    return fifo(most, 600.0)


def coalescing() -> Values:
    """The shipped profile as it is: identical deterministic requests share one decode."""
    return _base()
