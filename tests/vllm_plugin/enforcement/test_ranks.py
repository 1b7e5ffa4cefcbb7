"""Ranks of data parallelism are supported where each is an engine of its own, and only there."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.vllm_plugin.enforcement.engine_args import Args
from vllm_plugin.enforcement import ranks

REMEDY = "use external load balancing: start each rank as an engine of its own, by --data-parallel"


def found(
    args: Args, environ: dict[str, str] | None = None, argv: str = "", *, batching: bool = True
) -> str:
    return "; ".join(ranks.contradictions(args, environ or {}, argv.split(), batching=batching))


@pytest.mark.parametrize(
    "args",
    [
        Args(),
        Args(data_parallel_size=2, data_parallel_rank=0),
        Args(data_parallel_size=2, data_parallel_rank=1),
        # With --nnodes vLLM derives the rank of a process from its --node-rank.
        Args(data_parallel_size=2, data_parallel_external_lb=True),
    ],
)
def test_external_load_balancing_is_accepted(args: Args) -> None:
    assert found(args) == ""


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (Args(data_parallel_size=2), "--data-parallel-size is 2, must be 1 without --data-"),
        (
            Args(data_parallel_size=2, data_parallel_rank=0, data_parallel_hybrid_lb=True),
            "--data-parallel-hybrid-lb is given, must not be: vLLM would distribute",
        ),
        (
            Args(data_parallel_size=4, data_parallel_start_rank=0),
            "--data-parallel-start-rank is given, must not be: vLLM would distribute",
        ),
        (
            Args(data_parallel_size=2, data_parallel_multi_port_external_lb=True),
            "--data-parallel-multi-port-external-lb is given, must not be: it starts",
        ),
        (
            Args(data_parallel_size=2, data_parallel_rank=0, data_parallel_backend="ray"),
            "--data-parallel-backend is 'ray', must be 'mp'",
        ),
    ],
)
def test_what_distributes_requests_to_ranks_is_rejected_with_the_way_to_do_it(
    args: Args, words: str
) -> None:
    text = found(args)
    assert words in text
    assert REMEDY in text


@pytest.mark.parametrize(
    "option",
    [
        "--data-parallel-multi-port-external-lb",
        "--data_parallel_multi_port_external_lb",
        "--data-parallel-multi-port-external-lb=true",
    ],
)
def test_engine_that_was_started_by_vllms_launcher_of_ranks_is_rejected(option: str) -> None:
    """The launcher gives each engine its rank, and the command line is still its own."""
    rank = Args(data_parallel_size=2, data_parallel_rank=1, data_parallel_external_lb=True)
    assert "must not be: it starts" in found(rank, argv=f"vllm serve model {option}")
    assert found(rank, argv="vllm serve model --data-parallel-rank 1") == ""


def test_variable_that_makes_a_script_a_rank_is_rejected() -> None:
    assert REMEDY in found(Args(), {"VLLM_DP_SIZE": "2", "VLLM_DP_RANK": "1"})
    assert found(Args(), {"VLLM_DP_SIZE": "1"}) == ""
    # vLLM reads it only without the option.
    assert found(Args(data_parallel_size=2, data_parallel_rank=0), {"VLLM_DP_SIZE": "4"}) == ""


@pytest.mark.parametrize(
    ("args", "environ"),
    [
        (Args(data_parallel_size=2, data_parallel_rank=0), {}),
        (Args(), {"VLLM_DP_SIZE": "2"}),
    ],
)
def test_single_stream_has_one_rank(args: Args, environ: dict[str, str]) -> None:
    text = found(args, environ, batching=False)
    assert "the ranks of a model step together" in text
    assert "external load balancing" not in text


def test_final_configuration_must_be_of_one_engine() -> None:
    def text(size: int, *, external: bool, batching: bool = True) -> str | None:
        parallel = SimpleNamespace(data_parallel_size=size, data_parallel_external_lb=external)
        return ranks.contradiction(parallel, batching=batching)

    assert text(1, external=False) is None
    assert text(2, external=True) is None
    assert REMEDY in (text(2, external=False) or "")
    assert "must be 1: the ranks" in (text(2, external=True, batching=False) or "")
