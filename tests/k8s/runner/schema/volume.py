"""Volumes of a pod, and the sources that fill them. Sizes and modes are as in the manifest."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from tests.k8s.runner.schema.part import Part

DEFAULT_MODE = 0o644  # what the API server fills in for ConfigMap, Secret and projected volumes


class KeyToPath(Part):
    """One key of a ConfigMap or Secret and the file it becomes."""

    key: str
    path: str
    mode: int | None = None


class ConfigMapVolume(Part):
    name: str
    items: list[KeyToPath] | None = None
    default_mode: int = DEFAULT_MODE
    optional: bool = False


class SecretVolume(Part):
    secret_name: str
    items: list[KeyToPath] | None = None
    default_mode: int = DEFAULT_MODE
    optional: bool = False


class EmptyDir(Part):
    """`medium: Memory` is a tmpfs of `sizeLimit`; on disk the limit (an eviction) has no effect."""

    medium: Literal["", "Memory"] = ""
    size_limit: str | None = None


class FieldRef(Part):
    field_path: str
    api_version: Literal["v1"] = "v1"


class KeysOf(Part):
    """A ConfigMap or a Secret among the sources of a projected volume."""

    name: str
    items: list[KeyToPath] | None = None
    optional: bool = False


class ProjectedSource(Part):
    config_map: KeysOf | None = None
    secret: KeysOf | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.config_map is None) == (self.secret is None):
            raise ValueError("exactly one of configMap, secret is needed")
        return self


class Projected(Part):
    sources: list[ProjectedSource]
    default_mode: int = DEFAULT_MODE


class Claim(Part):
    claim_name: str
    read_only: bool = False


class Volume(Part):
    """A named volume with exactly one source."""

    name: str
    empty_dir: EmptyDir | None = None
    config_map: ConfigMapVolume | None = None
    secret: SecretVolume | None = None
    projected: Projected | None = None
    persistent_volume_claim: Claim | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        sources = [name for name in type(self).model_fields if name != "name"]
        given = [name for name in sources if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"volume {self.name!r} needs exactly one source, has {given or 'none'}"
            )
        return self
