"""vLLM's final configuration, made from arguments and environment, is checked as well."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from vllm_plugin.contracts.profile import load
from vllm_plugin.enforcement import enforce
from vllm_plugin.enforcement.enforce import ProfileContradiction


@dataclass
class ParallelConfig:
    """The fields that `verify` reads."""

    data_parallel_size: int = 1
    data_parallel_external_lb: bool = False
    pipeline_parallel_size: int = 1
    enable_elastic_ep: bool = False
    _api_process_count: int = 1
    node_rank_within_dp: int = 0


@dataclass
class Config:
    """The parts of the final configuration that `verify` reads."""

    scheduler_config: Any
    parallel_config: ParallelConfig = field(default_factory=ParallelConfig)
    kv_transfer_config: Any = None
    model_config: Any = field(default_factory=lambda: SimpleNamespace(pooler_config=None))


@dataclass
class SchedulerConfig:
    """The fields that `verify` reads."""

    max_num_seqs: int = 1
    max_num_active_seqs: int | None = None


def test_final_configuration_with_too_many_or_too_few_slots_is_rejected() -> None:
    home, cloud = load("home"), load("cloud")
    enforce.verify(Config(SchedulerConfig(1)), home)
    enforce.verify(Config(SchedulerConfig(64, 2)), cloud)
    for slots, profile in ((SchedulerConfig(8), home), (SchedulerConfig(64, 1), cloud)):
        with pytest.raises(ProfileContradiction, match=r"the engine would have . slots"):
            enforce.verify(Config(slots), profile)


@pytest.mark.parametrize(
    ("profile", "config", "words"),
    [
        ("home", {"parallel_config": ParallelConfig(2, True)}, "size is 2, must be 1: the ranks"),
        # VLLM_DP_SIZE has this effect without any argument.
        ("cloud", {"parallel_config": ParallelConfig(2)}, "size is 2, must be 1: vLLM would"),
        ("home", {"parallel_config": ParallelConfig(_api_process_count=3)}, "3 API servers"),
        ("home", {"parallel_config": ParallelConfig(enable_elastic_ep=True)}, "enable_elastic_ep"),
        ("cloud", {"parallel_config": ParallelConfig(pipeline_parallel_size=2)}, "micro-batch"),
        (
            "home",
            {
                "kv_transfer_config": SimpleNamespace(
                    kv_connector="NixlConnector", kv_role="kv_both"
                )
            },
            "kv_transfer_config has connector 'NixlConnector'",
        ),
        (
            "cloud",
            {
                "model_config": SimpleNamespace(
                    pooler_config=SimpleNamespace(enable_chunked_processing=True)
                )
            },
            "enable_chunked_processing of the pooler is set, must not be",
        ),
    ],
)
def test_settings_from_the_environment_are_checked(
    profile: str, config: dict[str, Any], words: str
) -> None:
    slots = SchedulerConfig(1 if profile == "home" else 8)
    with pytest.raises(ProfileContradiction, match=words):
        enforce.verify(Config(slots, **config), load(profile))


@pytest.mark.parametrize("profile", ["cloud", "offline"])
def test_rank_that_is_an_engine_of_its_own_is_accepted(profile: str) -> None:
    rank = ParallelConfig(data_parallel_size=2, data_parallel_external_lb=True)
    enforce.verify(Config(SchedulerConfig(8), rank), load(profile))


def test_offloading_and_pipeline_stages_of_one_sequence_are_accepted() -> None:
    offloading = SimpleNamespace(kv_connector="OffloadingConnector", kv_role="kv_both")
    stages = ParallelConfig(pipeline_parallel_size=2)
    enforce.verify(Config(SchedulerConfig(1), stages, offloading), load("home"))


def test_engine_without_an_api_server_is_rejected_but_not_workers_on_other_nodes() -> None:
    for node, rejected in ((0, True), (1, False)):
        config = Config(SchedulerConfig(1), ParallelConfig(node_rank_within_dp=node))
        enforce.verify(config, load("home"))
        if rejected:
            with pytest.raises(ProfileContradiction, match="--headless is given, must not be"):
                enforce.verify(config, load("home"), headless=True)
        else:
            enforce.verify(config, load("home"), headless=True)


def test_slots_are_the_active_sequences_if_those_are_limited() -> None:
    assert enforce.slots_of(SchedulerConfig(64)) == 64
    assert enforce.slots_of(SchedulerConfig(64, 8)) == 8
