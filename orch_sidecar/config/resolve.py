"""Resolves the settings: the configured pools, their profiles, rules and span attributes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import SecretStr

from orch_sidecar.config.changes import Configuration
from orch_sidecar.config.pool_settings import PoolSettings, header_value
from orch_sidecar.config.settings import SidecarSettings
from vllm_plugin.contracts import profile as profiles
from vllm_plugin.contracts.profile import AdmissionRules, Profile

ConfiguredPools = list[tuple[PoolSettings, Profile]]

# `measurement_type` of answers that belong to no pool, where the pools' types differ.
NO_TYPE: Final = "none"


def load_pools(settings: SidecarSettings) -> ConfiguredPools:
    """Loads profiles and key files of the configured pools. Raises ProfileError, ValueError."""
    if settings.pools is not None:
        names = dict.fromkeys(each.profile for each in settings.pools)
        loaded = {name: profiles.load(name) for name in names}
        return [(_with_key(each), loaded[each.profile]) for each in settings.pools]
    profile = profiles.load(settings.profile)
    single = PoolSettings(
        name=profile.name,
        url=settings.engine_url,
        profile=settings.profile,
        api_key=settings.engine_api_key,
    )
    return [(single, profile)]


def _with_key(pool: PoolSettings) -> PoolSettings:
    path = pool.api_key_file
    if path is None:
        return pool
    if pool.api_key is not None:
        raise ValueError(f"pool {pool.name} has api_key and api_key_file {path}: set one of them")
    try:
        key = header_value(SecretStr(path.read_text("ascii", "replace").strip()))
        if not key:
            raise ValueError("it is empty, but must contain a key")
    except (OSError, ValueError) as error:
        raise ValueError(f"pool {pool.name}: api_key_file {path}: {error}") from None
    return pool.model_copy(update={"api_key": key})


def configuration(pools: ConfiguredPools, settings: SidecarSettings) -> Configuration:
    """Returns the settings with the profiles and rules that they name."""
    return Configuration(
        settings,
        {pool.name: profile for pool, profile in pools},
        {pool.name: rules_of(profile, settings) for pool, profile in pools},
    )


def common_labels(pools: ConfiguredPools) -> dict[str, Any]:
    """Returns the span attributes that are equal for all pools."""
    first, *others = (labels_of(*each) for each in pools)
    if pools[0][0].headless:
        del first["orch.pool"]  # each address has a name of its own
    return {
        name: value
        for name, value in first.items()
        if all(other[name] == value for other in others)
    }


def unplaced_labels(common: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the span attributes of requests without a pool. `common`: those of all pools."""
    return {"measurement_type": NO_TYPE, **common}


def rules_of(profile: Profile, settings: SidecarSettings) -> AdmissionRules:
    """Returns the profile's rules, overridden by the settings."""
    overrides: dict[str, Any] = {}
    if settings.queue_capacity is not None:
        overrides["queue_capacity"] = settings.queue_capacity
    if settings.queue_timeout_s is not None:
        overrides["max_wait_s"] = settings.queue_timeout_s
    rules = profile.admission
    if not overrides:
        return rules
    classes = {"interactive": rules.interactive, "bulk": rules.bulk}
    return rules.model_copy(
        update={
            name: None if each is None else each.model_copy(update=overrides)
            for name, each in classes.items()
        }
    )


def labels_of(settings: PoolSettings, profile: Profile) -> dict[str, Any]:
    """Returns the span attributes of all requests that a pool serves."""
    return {
        "measurement_type": profile.measurement_type.value,
        "orch.profile": profile.name,
        "orch.batching": profile.batching,
        "orch.pool": settings.name,
    }
