"""Real engines (CPU build of vLLM, tiny models), each with a sidecar, and OTLP receivers.

A start takes half a minute of a core. So an engine runs on until a test ends it, and `ORDER` has
the files that use one follow each other.
"""

from __future__ import annotations

import secrets
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from orch_sidecar.tools.local.stack import Plan, Stack
from orch_sidecar.tools.local.up import tiny_model
from tests.engine import one_core
from tests.engine.receivers import GrpcReceiver, HttpReceiver
from tests.patience import READY_WITHIN_S

SLOTS = 8

ORDER = (
    # home, then cloud, in which nothing may have run: the fit of step times is of the last steps
    *("test_home", "test_warm_up", "test_capabilities_speed", "test_measuring"),
    *("test_false_labels", "test_evidence", "test_cloud"),
    *(
        "test_cloud_clients",
        "test_examples",
        "test_batches",
        "test_cloud_storm",
        "test_many_sidecars",
        "test_sidecar_keys",
        "test_coalescing",
        "test_operators",
        "test_check",
        "test_slow_machine",
        "test_update",
    ),
    "test_tenants",
    "test_failures",  # in the long run it ends and restarts the engine of cloud
    "test_parts",  # goes beyond the slots of the engines, directly
    # these end the engine of cloud, and that of home
    *("test_pools", "test_stopping"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    ours = [item for item in items if here in item.path.parents]
    for item in ours:
        item.add_marker(pytest.mark.engine)

    def place(item: pytest.Item) -> int:
        name = item.path.stem
        return ORDER.index(name) if name in ORDER else len(ORDER)

    ordered = iter(sorted(ours, key=place))
    items[:] = [next(ordered) if item in ours else item for item in items]


def make_plan(
    profile: str,
    slots: int | None,
    logs: Path,
    environ: dict[str, str] | None = None,
    core: int | None = None,
) -> Plan:
    """A plan for the tiny model. `core`: the one of a model with a process of its own; None: it is
    in that of the engine's core."""
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
            # All slots' longest sequences. The default, 1 GiB, takes seconds to be written.
            *("--block-size", "128", "--num-gpu-blocks-override", "300"),
        ),
        environ={
            "HF_HUB_OFFLINE": "1",
            "OTEL_BSP_SCHEDULE_DELAY": "200",
            "ORCH_PARENTS": "open",  # sidecars of tests are above its own
            "TORCHINDUCTOR_VEC_ISA_OK": "1",  # else a process tries the compiler at each start
            **(one_core.ENVIRON if core is None else {"VLLM_CPU_OMP_THREADS_BIND": str(core)}),
            **(environ or {}),
        },
        log_directory=logs,
    )


class Stacks:
    """The stacks that run, by name."""

    def __init__(self) -> None:
        self._running: dict[str, Stack] = {}

    def use(self, name: str, plan: Plan) -> Stack:
        """Returns the stack of this name, started if it does not run.

        One that a test has left without its engine or its sidecar is started anew.
        """
        if name in self._running and _whole(self._running[name]):
            return self._running[name]
        self.stop(name)
        stack = self._running[name] = Stack(plan)
        stack.start_engine()
        stack.start_sidecar()
        try:
            stack.wait_ready(READY_WITHIN_S, lambda waited, what: None)
        except BaseException:
            self.stop(name)
            raise
        return stack

    def stop(self, *names: str) -> None:
        """Stops those of these names that run."""
        for name in names:
            if name in self._running:
                self._running.pop(name).stop()

    def stop_all(self) -> None:
        self.stop(*list(self._running))


def _whole(stack: Stack) -> bool:
    children = (stack.engine, stack.sidecar)
    return all(child is not None and child.exit_code is None for child in children)


@pytest.fixture(scope="session")
def stacks() -> Iterator[Stacks]:
    running = Stacks()
    yield running
    running.stop_all()


@pytest.fixture(scope="session")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="session")
def receiver() -> Iterator[HttpReceiver]:
    """A collector that speaks OTLP over HTTP."""
    with HttpReceiver() as running:
        yield running


@pytest.fixture(scope="session")
def grpc_receiver() -> Iterator[GrpcReceiver]:
    """A collector that speaks OTLP over gRPC."""
    with GrpcReceiver() as running:
        yield running


@pytest.fixture(scope="session")
def operator_key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The key of an operator; beside it `trusted.yaml`, the file of trusted keys."""
    folder = tmp_path_factory.mktemp("operator")
    path = folder / "operator.pem"
    with (folder / "trusted.yaml").open("w", encoding="utf-8") as entry:
        command = [sys.executable, "-m", "orch_sidecar", "key", "lab", "--evidence", str(path)]
        subprocess.run(command, check=True, stdout=entry)
    return path


@pytest.fixture
def cloud(stacks: Stacks, logs: Path, receiver: HttpReceiver, operator_key: Path) -> Stack:
    """Profile cloud with 8 slots; traces go to `receiver`, over HTTP. Has operators' routes, signs
    statements with a key that `operator_key` certifies, and logs what it compiles."""
    environ = {
        "TORCH_LOGS": "dynamo",
        "ORCH_EVIDENCE_KEY": str(operator_key),
        "VLLM_SERVER_DEV_MODE": "1",
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
    }
    return stacks.use("cloud", make_plan("cloud", SLOTS, logs / "cloud", environ))


@pytest.fixture
def offline(stacks: Stacks, logs: Path, receiver: HttpReceiver) -> Stack:
    """Profile offline with 16 slots; traces go to `receiver`, over HTTP."""
    environ = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
    }
    return stacks.use("offline", make_plan("offline", 16, logs / "offline", environ))


@pytest.fixture
def home(stacks: Stacks, logs: Path, grpc_receiver: GrpcReceiver) -> Stack:
    """Profile home, with a prefix cache; VLLM_PLUGINS names something else; traces go out over
    gRPC."""
    environ = {
        "ORCH_WARM_UP": "off",  # for test_warm_up there is the other engine
        "VLLM_PLUGINS": "lora_filesystem_resolver",
        "OTEL_EXPORTER_OTLP_ENDPOINT": grpc_receiver.endpoint,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
    }
    plan = make_plan("home", None, logs / "home", environ)
    arguments = (*plan.engine_arguments, "--enable-prefix-caching")
    return stacks.use("home", replace(plan, engine_arguments=arguments))


CLIENTS, BLOCK_TOKENS, BLOCKS, CTX_MAX = 16, 32, 120, 512


@pytest.fixture(scope="session")
def sidecar_key() -> str:
    """The key by which the engine of `sliding` knows its sidecars."""
    return secrets.token_urlsafe(32)


@pytest.fixture
def sliding(
    stacks: Stacks, logs: Path, sidecar_key: str, tmp_path_factory: pytest.TempPathFactory
) -> Stack:
    """Profile cloud with 16 slots, and blocks for four sequences of 130 tokens, in groups of
    layers. The model has two names and room for adapters; the engine listens on all addresses,
    and knows its sidecars by a key."""
    directory = tmp_path_factory.getbasetemp() / "sliding"
    paths = [str(directory), str(tiny_model())]
    command = [sys.executable, "-m", "tests.engine.sliding_model", *paths]
    subprocess.run(command, check=True, capture_output=True)
    environ = {
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
        "ORCH_SIDECAR_KEY": f"next,{sidecar_key}",
    }
    plan = make_plan("cloud", CLIENTS, logs / "sliding", environ)
    more = (
        f"--max-model-len {CTX_MAX} --max-num-batched-tokens {CTX_MAX} "
        f"--block-size {BLOCK_TOKENS} --num-gpu-blocks-override {BLOCKS} "
        "--served-model-name tiny alias --enable-lora --max-lora-rank 8 --host 0.0.0.0"
    )
    arguments = (*plan.engine_arguments, *more.split())
    return stacks.use("sliding", replace(plan, model=str(directory), engine_arguments=arguments))
