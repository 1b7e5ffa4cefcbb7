"""A profile applied to engine arguments: which it sets, and which it leaves unchanged."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from tests.vllm_plugin.enforcement.engine_args import Args, apply, rejection
from vllm_plugin.contracts.profile import load
from vllm_plugin.enforcement import enforce
from vllm_plugin.enforcement.enforce import WORKER_EXTENSION, ProfileContradiction


@pytest.mark.parametrize(("profile", "slots"), [("home", 1), ("offline", 256)])
def test_arguments_that_were_not_given_are_set(profile: str, slots: int) -> None:
    args = Args()
    apply(profile, args)
    assert args == Args(
        max_num_seqs=slots,
        enable_logging_iteration_details=True,
        worker_extension_cls=WORKER_EXTENSION,
    )


def test_cloud_sets_the_scheduling_policy_and_the_token_budgets() -> None:
    args = Args()
    apply("cloud", args)
    assert args == Args(
        max_num_seqs=64,
        enable_logging_iteration_details=True,
        scheduling_policy="priority",
        max_num_batched_tokens=2048,
        long_prefill_token_threshold=256,
        worker_extension_cls=WORKER_EXTENSION,
    )


def test_worker_extension_of_the_operator_is_kept() -> None:
    """Then the attention backend is unknown."""
    args = Args(worker_extension_cls="theirs.Extension")
    apply("cloud", args)
    assert args.worker_extension_cls == "theirs.Extension"


def test_budgets_given_by_the_operator_are_kept() -> None:
    args = Args(
        max_num_seqs=4096,
        max_num_batched_tokens=8192,
        long_prefill_token_threshold=100,
        max_model_len=256,
    )
    apply("cloud", args)
    assert (args.max_num_batched_tokens, args.long_prefill_token_threshold) == (8192, 100)


@pytest.mark.parametrize("max_model_len", [None, -1, 256, 131_072])
def test_context_length_that_is_sufficient_or_unknown_is_accepted(
    max_model_len: int | None,
) -> None:
    apply("cloud", Args(max_model_len=max_model_len))


@pytest.mark.parametrize("profile", ["home", "offline"])
def test_budgets_without_a_rule_are_kept(profile: str) -> None:
    args = Args(
        max_num_batched_tokens=64,
        long_prefill_token_threshold=512,
        max_model_len=256,
        scheduling_policy="priority",
    )
    apply(profile, args)
    assert args.max_num_batched_tokens == 64


def test_vllms_default_on_the_command_line_counts_as_given(tmp_path: Path) -> None:
    """Only the command line distinguishes it from an argument that was not given."""
    message = rejection("cloud", Args(), argv="--scheduling-policy fcfs")
    assert "--scheduling-policy is 'fcfs', must be 'priority'" in message
    message = rejection("cloud", Args(), argv="--long_prefill_token_threshold=0")
    assert "--long-prefill-token-threshold is 0, must be at least 64" in message
    file = tmp_path / "mine.yaml"
    document = yaml.safe_load((Path(__file__).parents[3] / "profiles/cloud.yaml").read_text())
    document["engine"]["long_prefill_token_threshold"] = {"default": 512}
    file.write_text(yaml.safe_dump(document))
    args = Args()
    apply(load(str(file)), args, argv="--long-prefill-token-threshold 0")
    assert args.long_prefill_token_threshold == 0


@pytest.mark.parametrize(("profile", "slots"), [("home", 1), ("cloud", 2), ("cloud", 500)])
def test_slots_within_the_profile_are_kept(profile: str, slots: int) -> None:
    args = Args(max_num_seqs=slots)
    apply(profile, args)
    assert args.max_num_seqs == slots


def test_applying_twice_changes_nothing() -> None:
    args = Args()
    environ = apply("cloud", args, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317"})
    once, environ_once = replace(args), dict(environ)
    apply("cloud", args, environ)
    assert (args, environ) == (once, environ_once)


def test_custom_profile_may_fix_other_arguments(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    document = yaml.safe_load((Path(__file__).parents[3] / "profiles/home.yaml").read_text())
    document["engine"]["max_num_active_seqs"] = {"fixed": 1}
    file.write_text(yaml.safe_dump(document))
    args = Args()
    apply(load(str(file)), args)
    assert args.max_num_active_seqs == 1
    with pytest.raises(ProfileContradiction, match="--max-num-active-seqs is 2, must be 1"):
        apply(load(str(file)), Args(max_num_active_seqs=2))


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
