"""Compares reloaded settings and profiles with the current ones.

Pure: the reloader reads the files and applies the plan. A setting changes as a whole, and so does a
pool's profile: if any part of a profile needs a restart, no part of it changes. Everything that is
not listed as changeable here needs a restart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel, SecretBytes, SecretStr

from vllm_plugin.contracts.profile import AdmissionRules, Profile

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
