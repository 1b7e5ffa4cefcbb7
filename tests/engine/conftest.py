"""One real stack at a time: engine (CPU build of vLLM, a tiny model), sidecar, OTLP receiver.

Two engines at once would fight for the core that vLLM binds its worker to, so `stacks` keeps
the one that was asked for last, and a test file asks for one kind.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from orch_sidecar.tools.local.otlp import OtlpReceiver
from orch_sidecar.tools.local.stack import Plan, Stack
from orch_sidecar.tools.local.up import tiny_model
from tests.engine.grpc_receiver import GrpcReceiver

READY_WITHIN_S = 240.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.engine)
            item.add_marker(pytest.mark.timeout(420))


def make_plan(
    profile: str,
    slots: int | None,
    logs: Path,
    environ: dict[str, str] | None = None,
    sidecar_arguments: tuple[str, ...] = (),
) -> Plan:
    """A plan for the tiny model."""
    return Plan(
        profile=profile,
        model=str(tiny_model()),
        served_name="tiny",
        slots=slots,
        engine_arguments=(
            "--enable-auto-tool-choice",
            "--tool-call-parser",
            "hermes",
            # Every prompt is computed: a prefix cache would hide what prefill does.
            "--no-enable-prefix-caching",
            # A model of random weights would fill constrained JSON with white space for ever.
            "--structured-outputs-config",
            '{"backend": "xgrammar", "disable_any_whitespace": true}',
        ),
        environ={"HF_HUB_OFFLINE": "1", "OTEL_BSP_SCHEDULE_DELAY": "200", **(environ or {})},
        sidecar_arguments=sidecar_arguments,
        log_directory=logs,
    )


class Stacks:
    """The stack that runs now."""

    def __init__(self) -> None:
        self._plan: Plan | None = None
        self._stack: Stack | None = None

    def use(self, plan: Plan) -> Stack:
        """The stack of this plan, started if another one (or none) is running.

        One that a test has left without its engine or its sidecar is started anew.
        """
        if self._stack is not None and self._plan == plan and _whole(self._stack):
            return self._stack
        self.stop()
        stack = Stack(plan)
        self._plan, self._stack = plan, stack
        stack.start_engine()
        stack.start_sidecar()
        try:
            stack.wait_ready(READY_WITHIN_S, lambda waited, what: None)
        except BaseException:
            self.stop()
            raise
        return stack

    def stop(self) -> None:
        if self._stack is not None:
            self._stack.stop()
            self._stack = None


def _whole(stack: Stack) -> bool:
    children = (stack.engine, stack.sidecar)
    return all(child is not None and child.exit_code is None for child in children)


@pytest.fixture(scope="session")
def stacks() -> Iterator[Stacks]:
    running = Stacks()
    yield running
    running.stop()


@pytest.fixture(scope="session")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="session")
def receiver() -> Iterator[OtlpReceiver]:
    """A collector that speaks OTLP over HTTP."""
    with OtlpReceiver() as running:
        yield running


@pytest.fixture(scope="session")
def grpc_receiver() -> Iterator[GrpcReceiver]:
    """A collector that speaks OTLP over gRPC."""
    with GrpcReceiver() as running:
        yield running


@pytest.fixture
def cloud(stacks: Stacks, logs: Path, receiver: OtlpReceiver) -> Stack:
    """Profile cloud with 8 slots; traces go to `receiver`, over HTTP. Has operators' routes."""
    environ = {
        "VLLM_SERVER_DEV_MODE": "1",
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
    }
    return stacks.use(make_plan("cloud", 8, logs / "cloud", environ))


@pytest.fixture
def home(stacks: Stacks, logs: Path, grpc_receiver: GrpcReceiver) -> Stack:
    """Profile home, no flag; VLLM_PLUGINS names something else; traces go out over gRPC."""
    environ = {
        "VLLM_PLUGINS": "lora_filesystem_resolver",
        "OTEL_EXPORTER_OTLP_ENDPOINT": grpc_receiver.endpoint,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
    }
    return stacks.use(make_plan("home", None, logs / "home", environ))
