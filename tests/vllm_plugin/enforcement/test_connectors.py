"""KV connectors that are allowed because they exchange no blocks with other engines."""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vllm_plugin.enforcement.connectors import OFFLOADERS, OFFLOADING_BACKENDS, objection


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
    assert objection(allowed) is None
    assert objection(SimpleNamespace(**allowed)) is None, "as vLLM's own object"


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
    assert words in (objection(rejected) or "")


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
