"""The configuration that vLLM has made of arguments and environment, checked once more."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from vllm_plugin import enforce
from vllm_plugin.enforce import ProfileContradiction
from vllm_plugin.profile import load


@dataclass
class Config:
    """The finished configuration, as far as `verify` looks at it."""

    scheduler_config: Any
    parallel_config: Any = field(
        default_factory=lambda: SimpleNamespace(data_parallel_size=1, _api_process_count=1)
    )
    kv_transfer_config: Any = None


@dataclass
class SchedulerConfig:
    """What `verify` looks at."""

    max_num_seqs: int = 1
    max_num_active_seqs: int | None = None


def test_finished_configuration_is_checked_once_more() -> None:
    home, cloud = load("home"), load("cloud")
    enforce.verify(Config(SchedulerConfig(1)), home)
    enforce.verify(Config(SchedulerConfig(64, 2)), cloud)
    for slots, profile in ((SchedulerConfig(8), home), (SchedulerConfig(64, 1), cloud)):
        with pytest.raises(ProfileContradiction, match=r"the engine would have . slots"):
            enforce.verify(Config(slots), profile)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        # VLLM_DP_SIZE does that without any argument.
        ({"parallel_config": SimpleNamespace(data_parallel_size=2, _api_process_count=1)}, "2"),
        ({"parallel_config": SimpleNamespace(data_parallel_size=1, _api_process_count=3)}, "3 API"),
        ({"kv_transfer_config": object()}, "kv_transfer_config is set"),
    ],
)
def test_what_vllm_made_of_its_environment_is_checked_too(
    config: dict[str, Any], words: str
) -> None:
    with pytest.raises(ProfileContradiction, match=words):
        enforce.verify(Config(SchedulerConfig(1), **config), load("home"))


def test_slots_are_the_active_sequences_where_they_are_bounded() -> None:
    assert enforce.slots_of(SchedulerConfig(64)) == 64
    assert enforce.slots_of(SchedulerConfig(64, 8)) == 8
