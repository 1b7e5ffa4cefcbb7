"""What `orch up --check` checks and shows, of an engine that runs already."""

from __future__ import annotations

import pytest

from orch_sidecar.tools.local import check
from orch_sidecar.tools.local.stack import Stack
from tests.engine.receivers import HttpReceiver


def check_printed(printed: str, label: str) -> None:
    """What `orch up --check` shows of an engine of this measurement type."""
    assert f'"measurement_type": "{label}"' in printed
    trace = printed[printed.index("the trace of that request") :].splitlines()[1:5]
    names = [line.split()[0] for line in trace]
    assert names == ["/v1/chat/completions", "admission.wait", "engine.request", "llm_request"]
    assert all(f"measurement_type={label}" in line for line in trace)


def test_check_shows_answer_capabilities_and_trace(
    cloud: Stack, receiver: HttpReceiver, capsys: pytest.CaptureFixture[str]
) -> None:
    """The short form of the command, which starts an engine of its own: see test_up."""
    assert check.run(cloud, receiver).problems == []
    check_printed(capsys.readouterr().out, "batched_online")
