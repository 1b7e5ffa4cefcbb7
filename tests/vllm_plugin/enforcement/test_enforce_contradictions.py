"""Settings that contradict the profile are all rejected in one message, with value and rule."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.vllm_plugin.enforcement.engine_args import Args, apply, rejection
from vllm_plugin.contracts.profile import load
from vllm_plugin.enforcement.enforce import ProfileContradiction


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
