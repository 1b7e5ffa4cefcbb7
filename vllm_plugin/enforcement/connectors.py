"""Decides which of vLLM's KV connectors an engine with a profile may use, by configuration alone.

An offloading connector moves blocks of the engine's own KV cache to memory or storage and back:
what it loads was computed by this engine, as with its prefix cache. All others exchange blocks
with other engines: a prompt that another engine computed would be measured as this one's, and
blocks that another engine still reads outlive their request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

# --kv-offloading-backend sets one of the first three; the last has a pool in host memory.
OFFLOADERS: Final = frozenset(
    {
        "OffloadingConnector",
        "SimpleCPUOffloadConnector",
        "LMCacheMPConnector",
        "HiSparseConnector",
    }
)
OFFLOADING_BACKENDS: Final = frozenset({"native", "lmcache"})
_OFFLOADING_SPECS: Final = frozenset({"CPUOffloadingSpec", "TieringOffloadingSpec"})
# Storage. The others (p2p, kvcr) fetch blocks from other engines.
_TIERS: Final = frozenset({"fs", "obj", "example"})
# Several connectors at once, each of which must be allowed.
_MULTI_CONNECTOR: Final = "MultiConnector"


def objection(config: Any) -> str | None:
    """Returns why a KV transfer configuration is not allowed, or None if it is.

    `config`: vLLM's `KVTransferConfig`, or the mapping that it is created from.
    """
    connector = _get(config, "kv_connector")
    if connector is None:
        return None  # no connector: options for --kv-offloading-size
    module = _get(config, "kv_connector_module_path")
    if module:
        return (
            f"loads connector {connector!r} from {module!r}, must use one of vLLM's own: remove "
            "kv_connector_module_path"
        )
    extra = _get(config, "kv_connector_extra_config") or {}
    if connector == _MULTI_CONNECTOR:
        found = (objection(part) for part in extra.get("connectors", ()))
        return next((each for each in found if each), None)
    if connector not in OFFLOADERS:
        return (
            f"has connector {connector!r}, must have an offloading connector "
            f"({', '.join(sorted(OFFLOADERS))}): others exchange KV blocks with other engines"
        )
    role = _get(config, "kv_role")
    if role not in (None, "kv_both"):
        return (
            f"has role {role!r}, must be 'kv_both': with other roles two engines share the work of "
            "each request"
        )
    return _objection_to_tiers(extra)


def _objection_to_tiers(extra: Mapping[str, Any]) -> str | None:
    spec = extra.get("spec_name", "CPUOffloadingSpec")
    if spec not in _OFFLOADING_SPECS:
        return f"has spec_name {spec!r}, must be one of {', '.join(sorted(_OFFLOADING_SPECS))}"
    for tier in extra.get("secondary_tiers", ()):
        kind = tier.get("type")
        if kind not in _TIERS:
            return (
                f"has a secondary tier of type {kind!r}, must be one of "
                f"{', '.join(sorted(_TIERS))}: others exchange KV blocks with other engines"
            )
    return None


def _get(source: Any, name: str) -> Any:
    return source.get(name) if isinstance(source, Mapping) else getattr(source, name, None)
