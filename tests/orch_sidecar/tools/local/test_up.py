"""What `orch up` starts, without starting it, and what it says of an engine that starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from orch_sidecar import cli
from orch_sidecar.tools.local import up
from orch_sidecar.tools.local.stack import Plan, StackError
from orch_sidecar.tools.local.up import FIRST_PHASE, phase_of


def test_one_beside_another_has_logs_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans: list[Plan] = []

    def stack(plan: Plan) -> None:
        plans.append(plan)
        raise StackError("enough is known")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(up, "Stack", stack)
    for port, more in ((8080, ()), (8081, ()), (8081, ("--check",))):
        with pytest.raises(StackError):
            up._run(
                up.parser().parse_args(["--model", "m", *more]),
                cli.read_settings([f"--port={port}"]),
            )
    directories = [str(plan.log_directory.relative_to(tmp_path)) for plan in plans]
    assert directories == ["orch/logs/8080", "orch/logs/8081", "orch/logs/8081"]


PREFIX = "(EngineCore pid=12) INFO 11-23 09:02:21 [x.py:1] "


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("Resolved architecture: LlamaForCausalLM", ("reading its configuration", "")),
        ("orch: profile cloud (batched_online): 8 slots", ("starting its workers", "")),
        ("Initializing a V1 LLM engine (v0.32.0) with config: x", ("starting its workers", "")),
        ("Starting to load model /m...", ("loading the weights", "")),
        (
            "Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:01<00:01]",
            ("loading the weights", "50%"),
        ),
        ("Loading weights took 0.03 seconds", ("preparing the model", "")),
        ("Dynamo bytecode transform time: 2.4 s", ("compiling the model", "")),
        ("orch: warming up: compiling what requests with logprobs use", ("warming up", "")),
        ("init engine (profile, create kv cache, warmup model) took 1 s", ("starting its API", "")),
        ("GPU KV cache size: 262,144 tokens", ("reserving the KV cache", "")),
        (
            "Capturing CUDA graphs (decode, FULL):  43%|####      | 3/7",
            ("capturing CUDA graphs", "43%"),
        ),
        ("Starting vLLM server on http://127.0.0.1:8000", ("starting its API", "")),
    ],
)
def test_line_of_vllm_is_a_phase(line: str, found: tuple[str, str]) -> None:
    assert phase_of([PREFIX + line]) == found


def test_last_line_that_is_known_counts() -> None:
    eager = "Enforce eager set, disabling torch.compile, CUDAGraphs, and JIT kernel warmup."
    lines = ["Starting to load model m", "GPU KV cache size: 1", eager, ""]
    assert phase_of(lines) == ("reserving the KV cache", "")


def test_before_vllm_writes_anything_it_is_imported() -> None:
    assert phase_of([]) == (FIRST_PHASE, "")
