"""Runs one module of vLLM's tests directly and through the sidecar; prints the outcomes as JSON."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

_ORDER = ("passed", "skipped", "failed", "error")


class Outcomes:
    """The worst outcome of each test's phases, and why it failed."""

    def __init__(self) -> None:
        self.of: dict[str, str] = {}
        self.why: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        outcome = "error" if report.failed and report.when != "call" else report.outcome
        known = self.of.get(report.nodeid, "passed")
        self.of[report.nodeid] = max(known, outcome, key=_ORDER.index)
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            self.why[report.nodeid] = str(getattr(crash, "message", report.longrepr))[:400]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.of[report.nodeid] = "error"
            self.why[report.nodeid] = str(report.longrepr)[-400:]


def main(module: str, target: str) -> None:
    found = {}
    for way in ("directly", "sidecar"):
        os.environ["ORCH_UPSTREAM"] = way
        outcomes = Outcomes()
        pytest.main(["-q", "-p", "no:cacheprovider", "--timeout", "300", module], [outcomes])
        found[way] = {"of": outcomes.of, "why": outcomes.why}
    Path(target).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
