"""The configuration: settings, the profiles and rules that they name, and what a reload changes.

Only `load_pools` reads files. Comparing two configurations is pure: the reloader applies the plan.
A setting changes as a whole, and so does a pool's profile: if any part of a profile needs a
restart, no part of it changes. Everything that is not listed as changeable here needs a restart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel, SecretBytes, SecretStr

from orch_sidecar.config.pool_settings import PoolSettings, header_value
from orch_sidecar.config.settings import SidecarSettings
from vllm_plugin.contracts import profile as profiles
from vllm_plugin.contracts.profile import AdmissionRules, Profile

ConfiguredPools = list[tuple[PoolSettings, Profile]]

# `measurement_type` of answers that belong to no pool, where the pools' types differ.
NO_TYPE: Final = "none"

# Settings that are looked up each time they are needed, or that can be set where they are kept.
CHANGEABLE_SETTINGS: Final = frozenset(
    {
        "queue_capacity",
        "queue_timeout_s",
        "max_body_bytes",
        "body_budget_bytes",
        "max_header_bytes",
        "max_json_depth",
        "body_timeout_s",
        "connect_timeout_s",
        "engine_silence_s",
        "client_stall_s",
        "drain_timeout_s",
        "log_level",
    }
)

_ABSENT: Final = "(absent)"
_NOT_SHOWN: Final = "(not shown)"


@dataclass(frozen=True, slots=True)
class Configuration:
    """The configuration of a sidecar. `profiles` and `rules`: by name of the pool.

    `rules`: those of the profile, with the overrides of the settings.
    """

    settings: BaseModel
    profiles: Mapping[str, Profile]
    rules: Mapping[str, AdmissionRules]

    @classmethod
    def of(cls, pools: ConfiguredPools, settings: SidecarSettings) -> Configuration:
        """Returns the settings with the profiles and rules that they name."""
        return cls(
            settings,
            {pool.name: profile for pool, profile in pools},
            {pool.name: rules_of(profile, settings) for pool, profile in pools},
        )


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


@dataclass(frozen=True, slots=True)
class Change:
    """A value that differs, as text without secrets."""

    name: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.name}: {self.old} -> {self.new}"


@dataclass(frozen=True, slots=True)
class ReloadPlan:
    """What a reload changes. `rules`: of the pools whose rules change. `after`: the result."""

    changes: tuple[Change, ...]
    needs_restart: tuple[Change, ...]
    rules: Mapping[str, AdmissionRules]
    after: Configuration


def plan_reload(old: Configuration, new: Configuration) -> ReloadPlan:
    """Plans the way from one valid configuration to another. Applying the plan cannot fail."""
    changes: list[Change] = []
    needs_restart: list[Change] = []
    update: dict[str, Any] = {}
    for name in type(old.settings).model_fields:
        value = getattr(new.settings, name)
        differences = list(_differences(name, getattr(old.settings, name), value))
        if name in CHANGEABLE_SETTINGS:
            changes += differences
            update[name] = value
        else:
            needs_restart += differences
    if old.profiles.keys() != new.profiles.keys():  # a single pool is named by its profile
        names = (", ".join(sorted(each.profiles)) for each in (old, new))
        needs_restart.append(Change("names of the pools", *names))
    profiles, rules = dict(old.profiles), dict(old.rules)
    for pool in old.profiles.keys() & new.profiles.keys():
        fixed = list(_differences(f"{pool}: profile", *map(_fixed, _both(old, new, pool))))
        if fixed:
            needs_restart += fixed
            continue
        profiles[pool], rules[pool] = new.profiles[pool], new.rules[pool]
        changes += _differences(f"{pool}: admission", old.rules[pool], new.rules[pool])
    return ReloadPlan(
        changes=tuple(changes),
        needs_restart=tuple(needs_restart),
        rules={pool: each for pool, each in rules.items() if each != old.rules[pool]},
        after=Configuration(old.settings.model_copy(update=update), profiles, rules),
    )


class ReloadState:
    """The current configuration, and the result of the last reload."""

    def __init__(self, configuration: Configuration) -> None:
        self.configuration = configuration
        self.generation = 1
        self.last_error: str | None = None
        self.keys_error: str | None = None
        self.needs_restart: tuple[Change, ...] = ()

    def accept(self, new: Configuration) -> ReloadPlan:
        """Makes a valid configuration the current one. Returns what to apply."""
        plan = plan_reload(self.configuration, new)
        self.configuration = plan.after
        self.generation += 1
        self.last_error = self.keys_error = None
        self.needs_restart = plan.needs_restart
        return plan

    def failed(self, error: str) -> None:
        """Records why the configuration was not reloaded."""
        self.last_error = error

    def accept_keys(self) -> None:
        """Records that the API keys were reloaded."""
        self.keys_error = None

    def keys_failed(self, error: str) -> bool:
        """Records why the API keys were not reloaded. Returns whether the error is a new one."""
        is_new = error not in (self.last_error, self.keys_error)
        self.keys_error = error
        return is_new

    def document(self) -> dict[str, Any]:
        """Returns the state as a JSON object for the health pages."""
        return {
            "generation": self.generation,
            "last_reload_error": self.last_error or self.keys_error,
            "needs_restart": [change.name for change in self.needs_restart],
        }


def _both(old: Configuration, new: Configuration, pool: str) -> tuple[Profile, Profile]:
    return old.profiles[pool], new.profiles[pool]


def _fixed(profile: Profile) -> dict[str, Any]:
    """Returns what the engine was started with and what labels its metrics."""
    return profile.model_dump(exclude={"admission"})


def _differences(name: str, old: Any, new: Any) -> Iterator[Change]:
    if old == new:
        return
    before, after = dict(_leaves(name, old)), dict(_leaves(name, new))
    for leaf in {**before, **after}:
        one, other = before.get(leaf, _ABSENT), after.get(leaf, _ABSENT)
        if one != other:
            yield Change(leaf, _shown(one), _shown(other))


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yields the values within a value by path; the items of a list of named objects by name."""
    if isinstance(value, BaseModel):
        value = {field: getattr(value, field) for field in type(value).model_fields}
    elif isinstance(value, list | tuple) and all(hasattr(each, "name") for each in value):
        value = {each.name: each for each in value}
    if isinstance(value, Mapping) and value:
        for key, each in value.items():
            yield from _leaves(f"{name}.{key}", each)
    else:
        yield name, value


def _shown(value: Any) -> str:
    if isinstance(value, SecretStr | SecretBytes):
        return _NOT_SHOWN
    text = str(value)
    return _NOT_SHOWN if "@" in text else text  # a URL with a password
