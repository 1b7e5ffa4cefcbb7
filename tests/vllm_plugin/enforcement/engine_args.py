"""A substitute for vLLM's `EngineArgs`, and the application of a profile to it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from vllm_plugin.contracts.profile import Profile, load
from vllm_plugin.enforcement import enforce
from vllm_plugin.enforcement.enforce import ProfileContradiction


@dataclass
class Args:
    """The fields that `enforce` reads, with vLLM's defaults."""

    max_num_seqs: int | None = None
    max_num_active_seqs: int | None = None
    data_parallel_size: int = 1
    data_parallel_rank: int | None = None
    data_parallel_start_rank: int | None = None
    data_parallel_external_lb: bool = False
    data_parallel_hybrid_lb: bool = False
    data_parallel_multi_port_external_lb: bool = False
    data_parallel_backend: str = "mp"
    pipeline_parallel_size: int = 1
    enable_elastic_ep: bool = False
    kv_transfer_config: Any = None
    kv_offloading_size: float | None = None
    kv_offloading_backend: str = "native"
    scheduler_cls: Any = None
    otlp_traces_endpoint: str | None = None
    worker_extension_cls: str = ""
    enable_logging_iteration_details: bool = False
    scheduling_policy: str = "fcfs"
    max_num_batched_tokens: int | None = None
    long_prefill_token_threshold: int = 0
    max_model_len: int | None = None
    _api_process_count: int = 1


def apply(
    profile: str | Profile, args: Args, environ: dict[str, str] | None = None, argv: str = ""
) -> dict[str, str]:
    """Applies a profile and returns the environment. `argv`: the command line after `vllm`."""
    environ = {} if environ is None else environ
    chosen = load(profile) if isinstance(profile, str) else profile
    enforce.apply(args, chosen, environ, ["vllm", *argv.split()])
    return environ


def rejection(
    profile: str | Profile, args: Args, environ: dict[str, str] | None = None, argv: str = ""
) -> str:
    """Returns the message for arguments that contradict the profile."""
    before = replace(args)
    with pytest.raises(ProfileContradiction) as rejected:
        apply(profile, args, environ, argv)
    assert args == before, "nothing is set or clamped"
    message = str(rejected.value)
    name = profile if isinstance(profile, str) else profile.name
    assert message.startswith(f"these settings contradict profile {name!r} (")
    return message
