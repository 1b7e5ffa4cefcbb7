"""What contradicts a profile stops vLLM before any weight is read, with one message."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from orch_sidecar.tools.local.engine import SERVER
from orch_sidecar.tools.local.stack import free_port
from orch_sidecar.tools.local.up import tiny_model
from tests.patience import READY_WITHIN_S

LOADING = "Starting to load model"


def run_server(profile: str, *arguments: str) -> str:
    """Runs what `vllm serve` runs, without our launcher; returns what it printed."""
    environ = os.environ | {
        "ORCH_PROFILE": profile,
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    done = subprocess.run(
        [
            *(sys.executable, *SERVER, str(tiny_model()), "--dtype", "float32"),
            *("--port", str(free_port()), *arguments),
        ],
        env=environ,
        capture_output=True,
        text=True,
        timeout=READY_WITHIN_S,
    )
    assert done.returncode != 0
    return done.stdout + done.stderr


_SCRIPT = """
import gc, json, os, sys
gc.disable()  # as vllm_plugin.serve does: a fifth of the imports' time
from vllm import LLM
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm_plugin import serve

def message_of(make):
    try:
        make()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "accepted"

model = sys.argv[1]
common = {"model": model, "dtype": "float32", "enforce_eager": True}

def arguments(processes=1, **given):
    made = AsyncEngineArgs(**common, **given)
    made._api_process_count = processes
    return made.create_engine_config()

def command_line(*given):
    sys.argv = ["serve", model, "--dtype", "float32", *given]
    serve.main()

found = {
    "several": message_of(lambda: arguments(processes=2, max_num_seqs=8, data_parallel_size=2)),
    "headless": message_of(lambda: command_line("--headless")),
    "llm": message_of(lambda: LLM(**common, max_num_seqs=8)),
    "active": message_of(lambda: arguments(max_num_active_seqs=2)),
    "servers": message_of(lambda: arguments(processes=2)),
    "scheduler": message_of(lambda: arguments(scheduler_cls="my.Scheduler")),
    "transfer": message_of(lambda: arguments(
        kv_transfer_config={"kv_connector": "X", "kv_role": "kv_both"})),
    "elastic": message_of(lambda: arguments(enable_elastic_ep=True)),
    "offloading": arguments(kv_offloading_size=0.5).kv_transfer_config.kv_connector,
    "unset": arguments().scheduler_config.max_num_seqs,
    "details": arguments().observability_config.enable_logging_iteration_details,
    "resource": os.environ["OTEL_RESOURCE_ATTRIBUTES"],
}
os.environ["VLLM_USE_RUST_FRONTEND"] = "1"
found["rust"] = message_of(arguments)
del os.environ["VLLM_USE_RUST_FRONTEND"]
os.environ["ORCH_EVIDENCE_KEY"] = "/nowhere/operator.pem"
found["evidence"] = message_of(arguments)
del os.environ["ORCH_EVIDENCE_KEY"]
os.environ["ORCH_SIDECAR_KEY"] = "secret,"
found["key"] = message_of(arguments)
print("FOUND" + json.dumps(found))
"""


@pytest.fixture(scope="module")
def scripted() -> dict[str, str | int]:
    """What a script sees that makes engines of its own under profile home."""
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, str(tiny_model())],
        env=os.environ | {"ORCH_PROFILE": "home", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=READY_WITHIN_S,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("FOUND")]
    assert lines, done.stdout + done.stderr
    found: dict[str, str | int] = json.loads(lines[0].removeprefix("FOUND"))
    return found


def test_every_contradiction_is_listed(scripted: dict[str, str]) -> None:
    assert scripted["several"].startswith("ProfileContradiction: ")
    assert "contradict profile 'home' (single_stream)" in scripted["several"]
    assert "--max-num-seqs is 8, must be 1" in scripted["several"]
    assert "--data-parallel-size is 2, must be 1" in scripted["several"]
    assert "--api-server-count is 2, must be 1" in scripted["several"]


def test_engine_without_an_api_server_is_refused(scripted: dict[str, str]) -> None:
    words = "--headless is given, must not be on the first node of an engine"
    assert words in scripted["headless"]


def test_engine_with_an_invalid_key_for_sidecars_is_refused(scripted: dict[str, str]) -> None:
    assert scripted["key"].startswith("ValueError: ORCH_SIDECAR_KEY")
    assert "must be a key of printable ASCII characters" in scripted["key"]
    assert "secret" not in scripted["key"]


def test_a_script_with_vllm_llm_is_refused(scripted: dict[str, str]) -> None:
    assert scripted["llm"].startswith("ProfileContradiction: ")
    assert "--max-num-seqs is 8, must be 1" in scripted["llm"]


def test_without_a_flag_home_has_one_slot(scripted: dict[str, int]) -> None:
    assert scripted["unset"] == 1
    assert scripted["details"] is True


def test_kv_offloading_is_accepted(scripted: dict[str, str]) -> None:
    """vLLM makes a connector of it, in a configuration that nobody gave."""
    assert scripted["offloading"] == "OffloadingConnector"


def test_operators_key_that_cannot_be_used_is_refused(scripted: dict[str, str]) -> None:
    """Before any weight is read."""
    assert scripted["evidence"] == (
        "InvalidOperatorKey: ORCH_EVIDENCE_KEY /nowhere/operator.pem: cannot be read: "
        "No such file or directory"
    )


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("active", "--max-num-active-seqs is 2, must be 1"),
        ("servers", "--api-server-count is 2, must be 1"),
        ("scheduler", "--scheduler-cls is given, must not be"),
        ("transfer", "--kv-transfer-config has connector 'X', must have an offloading connector"),
        ("elastic", "--enable-elastic-ep is given, must not be"),
        ("rust", "VLLM_USE_RUST_FRONTEND is '1', must not be set"),
    ],
)
def test_ways_around_the_profile_are_refused(
    scripted: dict[str, str], way: str, words: str
) -> None:
    assert words in scripted[way]


def test_the_resource_states_how_the_engine_batches(scripted: dict[str, str]) -> None:
    assert "measurement_type=single_stream" in scripted["resource"]


# A start of a server each, for what the script above and a server in test_up show.
@pytest.mark.long
@pytest.mark.parametrize(
    ("profile", "arguments", "words"),
    [
        ("home", ("--max-num-seqs", "8", "--api-server-count=2"), "--api-server-count is 2, must"),
        ("cloud", ("--max-num-seqs", "1"), "--max-num-seqs is 1, must be at least 2"),
        ("/nowhere/missing.yaml", (), "missing.yaml: cannot be read"),
    ],
)
def test_server_that_contradicts_its_profile_is_refused(
    profile: str, arguments: tuple[str, ...], words: str
) -> None:
    printed = run_server(profile, *arguments)
    assert LOADING not in printed
    assert words in printed
