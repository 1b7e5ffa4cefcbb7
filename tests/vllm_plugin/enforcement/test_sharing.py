"""What an engine may share with others: nothing by KV connectors, steps as a rank of its own."""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.vllm_plugin.enforcement.engine_args import Args
from vllm_plugin.enforcement.sharing import (
    OFFLOADERS,
    OFFLOADING_BACKENDS,
    connector_objection,
    rank_contradictions,
)

REMEDY = "use external load balancing: start each rank as an engine of its own, by --data-parallel"


def found(
    args: Args, environ: dict[str, str] | None = None, argv: str = "", *, batching: bool = True
) -> str:
    return "; ".join(rank_contradictions(args, environ or {}, argv.split(), batching=batching))


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


def config(connector: str | None, **other: Any) -> dict[str, Any]:
    return {"kv_connector": connector, "kv_role": "kv_both", **other}


def offloading(**extra: Any) -> dict[str, Any]:
    return config("OffloadingConnector", kv_connector_extra_config=extra)


@pytest.mark.parametrize(
    "allowed",
    [
        *(config(name) for name in sorted(OFFLOADERS)),
        {"kv_connector_extra_config": {"cpu_bytes_to_use": 1}},
        offloading(cpu_bytes_to_use=1 << 30),
        offloading(spec_name="TieringOffloadingSpec", secondary_tiers=[{"type": "fs"}]),
        config(
            "MultiConnector",
            kv_connector_extra_config={
                "connectors": [config("OffloadingConnector"), config("HiSparseConnector")]
            },
        ),
    ],
    ids=str,
)
def test_offloading_is_allowed(allowed: dict[str, Any]) -> None:
    assert connector_objection(allowed) is None
    assert connector_objection(SimpleNamespace(**allowed)) is None, "as vLLM's own object"


@pytest.mark.parametrize(
    ("rejected", "words"),
    [
        (config("NixlConnector"), "has connector 'NixlConnector'"),
        (config("MooncakeStoreConnector"), "others exchange KV blocks with other engines"),
        (config("DecodeBenchConnector"), "must have an offloading connector"),
        (
            config("OffloadingConnector", kv_connector_module_path="mine"),
            "loads connector 'OffloadingConnector' from 'mine'",
        ),
        (config("OffloadingConnector") | {"kv_role": "kv_consumer"}, "has role 'kv_consumer'"),
        (offloading(spec_name="Mine"), "has spec_name 'Mine'"),
        (offloading(secondary_tiers=[{"type": "fs"}, {"type": "p2p"}]), "tier of type 'p2p'"),
        (
            config(
                "MultiConnector",
                kv_connector_extra_config={
                    "connectors": [config("OffloadingConnector"), config("NixlConnector")]
                },
            ),
            "has connector 'NixlConnector'",
        ),
    ],
    ids=str,
)
def test_connector_that_exchanges_blocks_with_other_engines_is_rejected(
    rejected: dict[str, Any], words: str
) -> None:
    assert words in (connector_objection(rejected) or "")


def test_installed_vllm_has_the_connectors_and_backends_of_these_names() -> None:
    """Its sources are parsed, not imported."""
    spec = find_spec("vllm")
    if spec is None or spec.origin is None:
        pytest.skip("vLLM is not installed: install the extra `cpu` or `gpu`")
    root = Path(spec.origin).parent
    factory = ast.parse((root / "distributed/kv_transfer/kv_connector/factory.py").read_text())
    registered = {
        node.args[0].value
        for node in ast.walk(factory)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "register_connector"
        and isinstance(node.args[0], ast.Constant)
    }
    assert registered >= OFFLOADERS
    backends = next(
        node.value
        for node in ast.parse((root / "config/cache.py").read_text()).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "KVOffloadingBackend"
    )
    assert ast.literal_eval(backends.slice) == tuple(sorted(OFFLOADING_BACKENDS, reverse=True))  # type: ignore[attr-defined]
