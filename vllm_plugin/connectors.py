"""Which of vLLM's KV connectors an engine under a profile may have.

An offloading connector moves blocks of the engine's own KV cache to memory or storage and back:
what it loads was computed for a request that this engine served, as with its prefix cache. All
others exchange blocks with other engines: a prompt that another engine computed would be
measured as this one's, and blocks that another engine still reads outlive their request. Pure;
knows names and configuration, loads no connector.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

# The first three are what --kv-offloading-backend sets; the last has a pool in the host's memory.
OFFLOADING: Final = frozenset(
    {
        "OffloadingConnector",
        "SimpleCPUOffloadConnector",
        "LMCacheMPConnector",
        "HiSparseConnector",
    }
)
OFFLOADING_BACKENDS: Final = frozenset({"native", "lmcache"})
_SPECS: Final = frozenset({"CPUOffloadingSpec", "TieringOffloadingSpec"})
# Storage. The others (p2p, kvcr) ask other engines for blocks.
_TIERS: Final = frozenset({"fs", "obj", "example"})
# Several connectors at once: as good as the worst of them.
_SEVERAL: Final = "MultiConnector"


def objection(config: Any) -> str | None:
    """Why a KV transfer configuration is refused; None if nothing enters the engine by it.

    `config`: vLLM's `KVTransferConfig`, or the mapping that one is made of.
    """
    connector = _get(config, "kv_connector")
    if connector is None:
        return None  # none is made of it; with --kv-offloading-size it only adds options
    module = _get(config, "kv_connector_module_path")
    if module:
        return (
            f"loads connector {connector!r} from {module!r}, must be one of vLLM's offloading ones"
        )
    extra = _get(config, "kv_connector_extra_config") or {}
    if connector == _SEVERAL:
        found = (objection(part) for part in extra.get("connectors", ()))
        return next((each for each in found if each), None)
    if connector not in OFFLOADING:
        return (
            f"has connector {connector!r}, must be an offloading one "
            f"({', '.join(sorted(OFFLOADING))}): KV blocks would enter the engine from elsewhere"
        )
    role = _get(config, "kv_role")
    if role not in (None, "kv_both"):
        return (
            f"has role {role!r}, must be 'kv_both': the engine would compute one half of each "
            "request, and another engine the other"
        )
    return _objection_to_tiers(extra)


def _objection_to_tiers(extra: Mapping[str, Any]) -> str | None:
    spec = extra.get("spec_name", "CPUOffloadingSpec")
    if spec not in _SPECS:
        return f"has spec_name {spec!r}, must be one of {', '.join(sorted(_SPECS))}"
    for tier in extra.get("secondary_tiers", ()):
        kind = tier.get("type")
        if kind not in _TIERS:
            return (
                f"has a secondary tier of type {kind!r}, must be one of "
                f"{', '.join(sorted(_TIERS))}: KV blocks would enter the engine from elsewhere"
            )
    return None


def _get(source: Any, name: str) -> Any:
    return source.get(name) if isinstance(source, Mapping) else getattr(source, name, None)
