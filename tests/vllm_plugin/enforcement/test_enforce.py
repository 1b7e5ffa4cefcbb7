"""A profile applied to engine arguments: which it sets, and which it leaves unchanged.

Settings that contradict it are all rejected in one message, with value and rule.
"""

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


@pytest.mark.parametrize(
    ("profile", "args", "expected"),
    [
        ("home", Args(max_num_seqs=8), "--max-num-seqs is 8, must be 1"),
        ("home", Args(max_num_active_seqs=2), "--max-num-active-seqs is 2, must be 1"),
        ("cloud", Args(max_num_seqs=1), "--max-num-seqs is 1, must be at least 2"),
        ("offline", Args(max_num_seqs=1), "--max-num-seqs is 1, must be at least 2"),
        ("cloud", Args(max_num_active_seqs=1), "--max-num-active-seqs is 1, must be at least 2"),
        ("home", Args(data_parallel_size=2), "--data-parallel-size is 2, must be 1: the"),
        ("cloud", Args(data_parallel_size=2), "must be 1 without --data-parallel-rank"),
        ("home", Args(_api_process_count=2), "--api-server-count is 2, must be 1"),
        (
            "home",
            Args(kv_transfer_config={"kv_connector": "NixlConnector", "kv_role": "kv_both"}),
            "--kv-transfer-config has connector 'NixlConnector', must have an offloading connector",
        ),
        (
            "cloud",
            Args(kv_offloading_size=1.0, kv_offloading_backend="shared"),
            "--kv-offloading-backend is 'shared', must be one of lmcache, native",
        ),
        ("cloud", Args(enable_elastic_ep=True), "--enable-elastic-ep is given, must not"),
        (
            "cloud",
            Args(pipeline_parallel_size=2),
            "--pipeline-parallel-size is 2, must be 1 where sequences are batched",
        ),
        ("offline", Args(pipeline_parallel_size=4), "--pipeline-parallel-size is 4, must"),
        ("home", Args(scheduler_cls="my.Scheduler"), "--scheduler-cls is given, must not"),
        (
            "cloud",
            Args(max_num_batched_tokens=100),
            "--max-num-batched-tokens is 100, must be at least 256",
        ),
        (
            "cloud",
            Args(long_prefill_token_threshold=1),
            "--long-prefill-token-threshold is 1, must be at least 64",
        ),
        (
            "cloud",
            Args(max_num_seqs=4096),
            "--max-num-batched-tokens is 2048 (by profile 'cloud'), must be at least "
            "--max-num-seqs, which is 4096",
        ),
        (
            "cloud",
            Args(max_num_seqs=512, max_num_batched_tokens=300),
            "--max-num-batched-tokens is 300, must be at least --max-num-seqs, which is 512",
        ),
        (
            "cloud",
            Args(max_model_len=128),
            "--long-prefill-token-threshold is 256 (by profile 'cloud'), must be at most "
            "--max-model-len, which is 128",
        ),
    ],
)
def test_contradiction_is_rejected_with_setting_value_and_rule(
    profile: str, args: Args, expected: str
) -> None:
    assert expected in rejection(profile, args)


@pytest.mark.parametrize(
    ("profile", "environ", "argv", "expected"),
    [
        ("home", {"VLLM_DP_SIZE": "2"}, "", "VLLM_DP_SIZE is '2', must not be set"),
        ("cloud", {}, "--api-server-count 2", "--api-server-count is 2, must be 1"),
        ("cloud", {}, "--api-server-count=3", "--api-server-count is 3, must be 1"),
        ("cloud", {}, "--api_server_count 4", "--api-server-count is 4, must be 1"),
        ("cloud", {}, "-asc 5", "--api-server-count is 5, must be 1"),
        (
            "cloud",
            {"VLLM_USE_RUST_FRONTEND": "1"},
            "",
            "VLLM_USE_RUST_FRONTEND is '1', must not be set",
        ),
        ("cloud", {}, "serve model --grpc", "--grpc is given, must not be"),
    ],
)
def test_environment_and_command_line_are_held_against_the_profile_too(
    profile: str, environ: dict[str, str], argv: str, expected: str
) -> None:
    assert expected in rejection(profile, Args(), environ, argv)


def test_one_message_lists_every_contradiction() -> None:
    args = Args(
        max_num_seqs=8,
        max_num_active_seqs=4,
        data_parallel_size=2,
        kv_transfer_config={"kv_connector": "P2pConnector"},
        enable_elastic_ep=True,
        scheduler_cls="x",
        _api_process_count=2,
    )
    message = rejection("home", args, {"VLLM_USE_RUST_FRONTEND": "1"})
    for setting in (
        "--max-num-seqs", "--max-num-active-seqs", "--data-parallel-size", "--api-server-count",
        "--enable-elastic-ep", "--scheduler-cls", "VLLM_USE_RUST_FRONTEND",
    ):  # fmt: skip
        assert message.count(f"{setting} is") == 1
    assert message.count("--kv-transfer-config has") == 1
    assert "(single_stream)" in message


@pytest.mark.parametrize(
    ("environ", "argv"),
    [
        ({"VLLM_USE_RUST_FRONTEND": "0"}, ""),
        ({"VLLM_USE_RUST_FRONTEND": ""}, ""),
        ({}, "--api-server-count 1"),
        ({}, "--api-server-count"),
        ({}, "--api-server-count two"),
        ({}, "--api-server-count 4 --api-server-count 1"),
        ({}, "--served-model-name 2"),
    ],
)
def test_settings_that_contradict_nothing_are_accepted(environ: dict[str, str], argv: str) -> None:
    apply("cloud", Args(), environ, argv)


def test_tensor_parallelism_and_stages_of_one_sequence_are_accepted() -> None:
    args = Args(pipeline_parallel_size=2)
    args.tensor_parallel_size = 4  # type: ignore[attr-defined]
    apply("home", args)


@pytest.mark.parametrize("backend", ["native", "lmcache"])
def test_backend_that_offloads_is_accepted(backend: str) -> None:
    apply("cloud", Args(kv_offloading_size=4.0, kv_offloading_backend=backend))


def test_rule_for_an_argument_that_vllm_does_not_have_is_a_contradiction(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    document = yaml.safe_load((Path(__file__).parents[3] / "profiles/home.yaml").read_text())
    document["engine"]["max_num_sequences"] = {"fixed": 1}
    file.write_text(yaml.safe_dump(document))
    with pytest.raises(ProfileContradiction, match="--max-num-sequences"):
        apply(load(str(file)), Args())


def test_argument_of_the_wrong_type_is_a_contradiction() -> None:
    args = Args()
    args.max_num_seqs = "1"  # type: ignore[assignment]
    with pytest.raises(ProfileContradiction, match="--max-num-seqs is '1', must be"):
        apply("home", args)
