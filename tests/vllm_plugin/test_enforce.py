"""A profile applied to engine arguments. A stand-in has the fields of vLLM's `EngineArgs`."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from vllm_plugin import enforce
from vllm_plugin.enforce import ProfileContradiction
from vllm_plugin.profile import Profile, load


@dataclass
class Args:
    """What `enforce` looks at, with vLLM's defaults."""

    max_num_seqs: int | None = None
    max_num_active_seqs: int | None = None
    data_parallel_size: int = 1
    kv_transfer_config: Any = None
    scheduler_cls: Any = None
    otlp_traces_endpoint: str | None = None
    enable_logging_iteration_details: bool = False
    scheduling_policy: str = "fcfs"
    max_num_batched_tokens: int | None = None
    long_prefill_token_threshold: int = 0
    max_model_len: int | None = None
    _api_process_count: int = 1


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


def apply(
    profile: str | Profile, args: Args, environ: dict[str, str] | None = None, argv: str = ""
) -> dict[str, str]:
    environ = {} if environ is None else environ
    chosen = load(profile) if isinstance(profile, str) else profile
    enforce.apply(args, chosen, environ, ["vllm", *argv.split()])
    return environ


def refusal(profile: str, args: Args, environ: dict[str, str] | None = None, argv: str = "") -> str:
    before = replace(args)
    with pytest.raises(ProfileContradiction) as refused:
        apply(profile, args, environ, argv)
    assert args == before, "nothing is set, nothing is clamped"
    message = str(refused.value)
    assert message.startswith(f"these settings contradict profile {profile!r} (")
    return message


@pytest.mark.parametrize(("profile", "slots"), [("home", 1), ("offline", 256)])
def test_arguments_that_were_not_given_are_set(profile: str, slots: int) -> None:
    args = Args()
    apply(profile, args)
    assert args == Args(max_num_seqs=slots, enable_logging_iteration_details=True)


def test_cloud_sets_who_goes_first_and_what_a_step_may_hold() -> None:
    args = Args()
    apply("cloud", args)
    assert args == Args(
        max_num_seqs=64,
        enable_logging_iteration_details=True,
        scheduling_policy="priority",
        max_num_batched_tokens=2048,
        long_prefill_token_threshold=256,
    )


def test_budgets_that_the_operator_gave_are_kept() -> None:
    args = Args(
        max_num_seqs=4096,
        max_num_batched_tokens=8192,
        long_prefill_token_threshold=100,
        max_model_len=256,
    )
    apply("cloud", args)
    assert (args.max_num_batched_tokens, args.long_prefill_token_threshold) == (8192, 100)


@pytest.mark.parametrize("max_model_len", [None, -1, 256, 131_072])
def test_context_length_that_is_long_enough_or_not_known_yet_is_none_of_ours(
    max_model_len: int | None,
) -> None:
    apply("cloud", Args(max_model_len=max_model_len))


@pytest.mark.parametrize("profile", ["home", "offline"])
def test_profile_that_sets_no_budget_has_no_say_in_it(profile: str) -> None:
    args = Args(
        max_num_batched_tokens=64,
        long_prefill_token_threshold=512,
        max_model_len=256,
        scheduling_policy="priority",
    )
    apply(profile, args)
    assert args.max_num_batched_tokens == 64


def test_default_of_vllm_that_the_command_line_gives_is_given(tmp_path: Path) -> None:
    """It looks like an argument that was not given, except on the command line."""
    message = refusal("cloud", Args(), argv="--scheduling-policy fcfs")
    assert "--scheduling-policy is 'fcfs', must be 'priority'" in message
    message = refusal("cloud", Args(), argv="--long_prefill_token_threshold=0")
    assert "--long-prefill-token-threshold is 0, must be at least 64" in message
    file = tmp_path / "mine.yaml"
    document = yaml.safe_load((Path(__file__).parents[2] / "profiles/cloud.yaml").read_text())
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


@pytest.mark.parametrize(
    ("profile", "args", "environ", "argv", "expected"),
    [
        ("home", Args(max_num_seqs=8), {}, "", "--max-num-seqs is 8, must be 1"),
        ("home", Args(max_num_active_seqs=2), {}, "", "--max-num-active-seqs is 2, must be 1"),
        ("cloud", Args(max_num_seqs=1), {}, "", "--max-num-seqs is 1, must be at least 2"),
        ("offline", Args(max_num_seqs=1), {}, "", "--max-num-seqs is 1, must be at least 2"),
        (
            "cloud",
            Args(max_num_active_seqs=1),
            {},
            "",
            "--max-num-active-seqs is 1, must be at least 2",
        ),
        ("cloud", Args(data_parallel_size=2), {}, "", "--data-parallel-size is 2, must be 1"),
        ("home", Args(_api_process_count=2), {}, "", "--api-server-count is 2, must be 1"),
        ("cloud", Args(), {}, "--api-server-count 2", "--api-server-count is 2, must be 1"),
        ("cloud", Args(), {}, "--api-server-count=3", "--api-server-count is 3, must be 1"),
        ("cloud", Args(), {}, "--api_server_count 4", "--api-server-count is 4, must be 1"),
        ("cloud", Args(), {}, "-asc 5", "--api-server-count is 5, must be 1"),
        (
            "home",
            Args(kv_transfer_config={"kv_role": "kv_both"}),
            {},
            "",
            "--kv-transfer-config is given, must not be",
        ),
        ("home", Args(scheduler_cls="my.Scheduler"), {}, "", "--scheduler-cls is given, must not"),
        (
            "cloud",
            Args(max_num_batched_tokens=100),
            {},
            "",
            "--max-num-batched-tokens is 100, must be at least 256",
        ),
        (
            "cloud",
            Args(long_prefill_token_threshold=1),
            {},
            "",
            "--long-prefill-token-threshold is 1, must be at least 64",
        ),
        (
            "cloud",
            Args(max_num_seqs=4096),
            {},
            "",
            "--max-num-batched-tokens is 2048 (by profile 'cloud'), must be at least "
            "--max-num-seqs, which is 4096",
        ),
        (
            "cloud",
            Args(max_num_seqs=512, max_num_batched_tokens=300),
            {},
            "",
            "--max-num-batched-tokens is 300, must be at least --max-num-seqs, which is 512",
        ),
        (
            "cloud",
            Args(max_model_len=128),
            {},
            "",
            "--long-prefill-token-threshold is 256 (by profile 'cloud'), must be at most "
            "--max-model-len, which is 128",
        ),
        (
            "cloud",
            Args(),
            {"VLLM_USE_RUST_FRONTEND": "1"},
            "",
            "VLLM_USE_RUST_FRONTEND is '1', must not be set",
        ),
    ],
)
def test_contradiction_is_refused_with_setting_value_and_rule(
    profile: str, args: Args, environ: dict[str, str], argv: str, expected: str
) -> None:
    assert expected in refusal(profile, args, environ, argv)


def test_one_message_lists_every_contradiction() -> None:
    args = Args(
        max_num_seqs=8,
        max_num_active_seqs=4,
        data_parallel_size=2,
        kv_transfer_config={},
        scheduler_cls="x",
        _api_process_count=2,
    )
    message = refusal("home", args, {"VLLM_USE_RUST_FRONTEND": "1"})
    for setting in (
        "--max-num-seqs", "--max-num-active-seqs", "--data-parallel-size", "--api-server-count",
        "--kv-transfer-config", "--scheduler-cls", "VLLM_USE_RUST_FRONTEND",
    ):  # fmt: skip
        assert message.count(f"{setting} is") == 1
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
def test_what_contradicts_nothing_is_let_through(environ: dict[str, str], argv: str) -> None:
    apply("cloud", Args(), environ, argv)


def test_tensor_and_pipeline_parallel_are_free() -> None:
    args = Args()
    args.tensor_parallel_size = 4  # type: ignore[attr-defined]
    args.pipeline_parallel_size = 2  # type: ignore[attr-defined]
    apply("home", args)


def test_own_profile_may_fix_other_arguments(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    document = yaml.safe_load((Path(__file__).parents[2] / "profiles/home.yaml").read_text())
    document["engine"]["max_num_active_seqs"] = {"fixed": 1}
    file.write_text(yaml.safe_dump(document))
    args = Args()
    apply(load(str(file)), args)
    assert args.max_num_active_seqs == 1
    with pytest.raises(ProfileContradiction, match="--max-num-active-seqs is 2, must be 1"):
        apply(load(str(file)), Args(max_num_active_seqs=2))


def test_rule_for_an_argument_that_vllm_does_not_have_is_a_contradiction(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    document = yaml.safe_load((Path(__file__).parents[2] / "profiles/home.yaml").read_text())
    document["engine"]["max_num_sequences"] = {"fixed": 1}
    file.write_text(yaml.safe_dump(document))
    with pytest.raises(ProfileContradiction, match="--max-num-sequences"):
        apply(load(str(file)), Args())


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


def test_an_argument_of_the_wrong_type_is_a_contradiction_and_no_crash() -> None:
    args = Args()
    args.max_num_seqs = "1"  # type: ignore[assignment]
    with pytest.raises(ProfileContradiction, match="--max-num-seqs is '1', must be"):
        apply("home", args)


def test_slots_are_the_active_sequences_where_they_are_bounded() -> None:
    assert enforce.slots_of(SchedulerConfig(64)) == 64
    assert enforce.slots_of(SchedulerConfig(64, 8)) == 8


GRPC, HTTP = "grpc", "http/protobuf"


@pytest.mark.parametrize(
    ("environ", "endpoint", "protocol"),
    [
        ({}, None, None),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, None, None),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317"}, "http://c:4317", GRPC),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, "http://c:4318/v1/traces", HTTP),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318/"}, "http://c:4318/v1/traces", HTTP),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c/otlp"}, "http://c/otlp/v1/traces", HTTP),
        (
            {
                "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:9999",
                "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
            },
            "http://c:9999",
            GRPC,
        ),
        (
            {
                "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317",
                "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
                "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
            },
            "http://c:4317/v1/traces",
            HTTP,
        ),
        (
            {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/own"},
            "http://c:4318/own",
            HTTP,
        ),
        (
            {
                "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://own:4317",
                "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318",
            },
            "http://own:4317",
            GRPC,
        ),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:1", "OTEL_SDK_DISABLED": "TRUE"}, None, None),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:1", "OTEL_TRACES_EXPORTER": "none"}, None, None),
    ],
)
def test_standard_variables_become_vllms_own_argument(
    environ: dict[str, str], endpoint: str | None, protocol: str | None
) -> None:
    args = Args()
    after = apply("home", args, dict(environ))
    assert args.otlp_traces_endpoint == endpoint
    if protocol is not None:
        assert after["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"] == protocol
    else:
        assert after == environ


def test_endpoint_that_the_operator_gave_is_kept() -> None:
    args = Args(otlp_traces_endpoint="http://mine:4317")
    after = apply("home", args, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"})
    assert args.otlp_traces_endpoint == "http://mine:4317"
    assert after["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"] == GRPC


def test_resource_is_labelled_and_the_operators_attributes_kept() -> None:
    environ = {"OTEL_RESOURCE_ATTRIBUTES": "team=ml,k8s.pod.name=p%2C1"}
    enforce.label_resource(load("cloud"), environ)
    assert environ["OTEL_RESOURCE_ATTRIBUTES"] == (
        "team=ml,k8s.pod.name=p%2C1,measurement_type=batched_online,orch.profile=cloud"
    )
    assert environ["OTEL_SERVICE_NAME"] == "vllm"


def test_labelling_is_idempotent_and_the_profile_wins() -> None:
    environ = {
        "OTEL_RESOURCE_ATTRIBUTES": "measurement_type=offline, orch.profile=x,team=ml",
        "OTEL_SERVICE_NAME": "mine",
    }
    enforce.label_resource(load("home"), environ)
    once = dict(environ)
    enforce.label_resource(load("home"), environ)
    assert environ == once
    assert environ["OTEL_RESOURCE_ATTRIBUTES"] == (
        "team=ml,measurement_type=single_stream,orch.profile=home"
    )
    assert environ["OTEL_SERVICE_NAME"] == "mine"


@pytest.mark.parametrize(("text", "kept"), [("Iteration(%d): x", False), ("Engine %03d", True)])
def test_line_per_step_is_dropped_from_the_log(text: str, kept: bool) -> None:
    record = logging.LogRecord("vllm", logging.INFO, "f", 1, text, None, None)
    assert enforce.NoIterationLines().filter(record) is kept
