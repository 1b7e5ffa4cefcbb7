"""What changes when settings and profiles are read again, and what needs a restart.

A setting is one whole, and so is a pool's profile: where any part of a profile needs a restart,
nothing of it is taken. What is not listed as changeable here needs a restart.

Pure: whoever reads files and performs a plan is elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel, SecretBytes, SecretStr

from vllm_plugin.profile import AdmissionRules, Profile

# Settings that are looked at each time they are needed, or can be set where they are kept.
CHANGEABLE: Final = frozenset(
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
    """What a sidecar was told. `profiles` and `rules` by pool.

    `rules`: those of the profile, with what the settings say instead.
    """

    settings: BaseModel
    profiles: Mapping[str, Profile]
    rules: Mapping[str, AdmissionRules]


@dataclass(frozen=True, slots=True)
class Change:
    """A value that is another one than before, as it may be shown."""

    name: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.name}: {self.old} -> {self.new}"


@dataclass(frozen=True, slots=True)
class Plan:
    """What a reload does. `rules`: of the pools whose rules change. `after`: what then holds."""

    changes: tuple[Change, ...]
    needs_restart: tuple[Change, ...]
    rules: Mapping[str, AdmissionRules]
    after: Configuration


def plan(old: Configuration, new: Configuration) -> Plan:
    """From what holds to what was read. Both are valid, so nothing of the plan can fail."""
    changes: list[Change] = []
    needs_restart: list[Change] = []
    update: dict[str, Any] = {}
    for name in type(old.settings).model_fields:
        value = getattr(new.settings, name)
        differences = list(_differences(name, getattr(old.settings, name), value))
        if name in CHANGEABLE:
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
    return Plan(
        changes=tuple(changes),
        needs_restart=tuple(needs_restart),
        rules={pool: each for pool, each in rules.items() if each != old.rules[pool]},
        after=Configuration(old.settings.model_copy(update=update), profiles, rules),
    )


class Reloads:
    """The configuration that holds, and how the last reload went."""

    def __init__(self, configuration: Configuration) -> None:
        self.configuration = configuration
        self.generation = 1
        self.last_error: str | None = None
        self.keys_error: str | None = None
        self.needs_restart: tuple[Change, ...] = ()

    def read(self, new: Configuration) -> Plan:
        """It could be read: what to do now. From here on it holds."""
        made = plan(self.configuration, new)
        self.configuration = made.after
        self.generation += 1
        self.last_error = self.keys_error = None
        self.needs_restart = made.needs_restart
        return made

    def failed(self, error: str) -> None:
        """It could not be read: everything stays as it is."""
        self.last_error = error

    def keys_read(self) -> None:
        """The API keys could be read, by themselves."""
        self.keys_error = None

    def keys_failed(self, error: str) -> bool:
        """They could not: they stay as they are. Whether that has not been said before."""
        news = error not in (self.last_error, self.keys_error)
        self.keys_error = error
        return news

    def document(self) -> dict[str, Any]:
        """For pages about health."""
        return {
            "generation": self.generation,
            "last_reload_error": self.last_error or self.keys_error,
            "needs_restart": [change.name for change in self.needs_restart],
        }


def _both(old: Configuration, new: Configuration, pool: str) -> tuple[Profile, Profile]:
    return old.profiles[pool], new.profiles[pool]


def _fixed(profile: Profile) -> dict[str, Any]:
    """Of a profile, what the engine was started with and figures are labelled by."""
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
    """The values within a value, by where they are; of a list of named things by their names."""
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
