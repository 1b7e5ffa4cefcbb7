"""What holds for all tests: Hypothesis's number of examples, and which files are slow."""

from __future__ import annotations

import gc
import os

import pytest
from hypothesis import HealthCheck, settings

from tests.fuzz import examples

# What is imported and collected stays: to look for garbage in it is a tenth of the time of tests.
gc.disable()

# Before gRPC is loaded: after a fork it would start its threads again, in a child whose
# descriptors are closed for the program that it becomes.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "false"

# kubectl runs some hundred times, and spends a third of its time on garbage that it need not.
os.environ.setdefault("GOGC", "400")

# A machine that is busy with other things is no error of an example.
settings.register_profile(
    "project",
    max_examples=max(50, examples(100)),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("project")

# Ends of paths: files that take more than two seconds, by waiting or by starting processes.
SLOW = (
    "bench/test_cli.py",
    "integration/batches/test_batches_killed.py",
    "integration/bench/*.py",
    "integration/browser/*.py",
    "integration/test_admission.py",
    "integration/test_back_pressure.py",
    "integration/test_body_budget.py",
    "integration/test_cancel.py",
    "integration/test_disconnects.py",
    "integration/test_drain.py",
    "integration/test_lifecycle.py",
    "integration/test_live.py",
    "integration/test_many_sidecars.py",
    "integration/test_official_clients.py",
    "integration/test_pools.py",
    "integration/test_process.py",
    "integration/test_reload.py",
    "integration/test_rendered.py",
    "integration/test_soak.py",
    "integration/test_state_stream.py",
    "integration/test_top.py",
    "integration/test_traces.py",
    "simulate/test_run.py",
    "test_body_outline.py",
    "test_device.py",
    "test_engine_restart.py",
    "test_jaeger.py",
    "test_manifests_code.py",
    "test_other_pythons.py",
    "test_picture.py",
    "test_policies.py",
    "test_processes.py",
    "test_runner.py",
    "test_sweep.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if any(item.path.match(name) for name in SLOW):
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Unlike the time that passed, what the tests took of processors can be compared."""
    took = os.times()
    own, ended = took.user + took.system, took.children_user + took.children_system
    terminalreporter.write_line(f"processor time: {own:.0f} s, and {ended:.0f} s of processes")
