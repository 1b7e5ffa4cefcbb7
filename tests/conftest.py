"""What holds for all tests: Hypothesis's number of examples, and which files are slow."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

from tests.fuzz import examples

# Before gRPC is loaded: after a fork it would start its threads again, in a child whose
# descriptors are closed for the program that it becomes.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "false"

settings.register_profile("project", max_examples=max(50, examples(100)))
settings.load_profile("project")

# Files (or folders) that take more than two seconds, by waiting or by starting processes.
SLOW = (
    "integration/bench",
    "integration/test_back_pressure.py",
    "integration/test_broken_answers.py",
    "integration/test_cancel.py",
    "integration/test_coalescing_failures.py",
    "integration/test_coalescing_refusals.py",
    "integration/test_coalescing_storm.py",
    "integration/test_connections_limit.py",
    "integration/test_disconnects.py",
    "integration/test_drain_command.py",
    "integration/test_engine_gone.py",
    "integration/test_failures.py",
    "integration/test_keys_reload.py",
    "integration/test_leases.py",
    "integration/test_lifecycle.py",
    "integration/test_openai_client.py",
    "integration/test_pools.py",
    "integration/test_process.py",
    "integration/test_reload.py",
    "integration/test_short_waits.py",
    "integration/test_soak.py",
    "integration/test_state_stream.py",
    "integration/test_traces_collector.py",
    "k8s/test_engine_restart.py",
    "k8s/test_manifests_generated.py",
    "k8s/test_runner.py",
    "k8s/test_runner_leaving.py",
    "orch_sidecar/api/test_body_outline.py",
    "orch_sidecar/tools/bench/decode/test_kernel.py",
    "orch_sidecar/tools/bench/runs/test_sweep.py",
    "orch_sidecar/tools/bench/test_cli.py",
    "orch_sidecar/tools/facts/comparison/test_plot.py",
    "orch_sidecar/tools/facts/traces/test_jaeger.py",
    "orch_sidecar/tools/local/test_processes.py",
    "orch_sidecar/tools/simulate/test_policies.py",
    "orch_sidecar/tools/simulate/test_run.py",
    "test_install.py",
    "test_other_pythons.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    slow = [Path(__file__).parent / name for name in SLOW]
    for item in items:
        if any(item.path.is_relative_to(path) for path in slow):
            item.add_marker(pytest.mark.slow)
