"""Modules that the package's list calls pure, and what they load."""

from __future__ import annotations

import re

import orch_sidecar.bench
from tests.test_house import loaded_by


def test_modules_that_are_called_pure_load_no_event_loop_and_no_http() -> None:
    assert orch_sidecar.bench.__doc__ is not None
    pure = re.findall(r"^    (\w+) +pure: ", orch_sidecar.bench.__doc__, re.MULTILINE)
    assert {"stream", "call", "tally", "summary", "result", "fact", "words"} <= set(pure)
    assert loaded_by(f"from orch_sidecar.bench import {', '.join(pure)}") == set()
