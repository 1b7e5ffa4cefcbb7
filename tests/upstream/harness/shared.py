"""`tests.conftest` for vLLM's tests: whatever they load from the hub is the tiny model or its
adapter."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import huggingface_hub
import vllm.tokenizers
from transformers import AutoConfig, AutoTokenizer

_MODEL: Final = os.environ["ORCH_UPSTREAM_MODEL"]
_Loads = type[AutoTokenizer] | type[AutoConfig]


def _load_the_tiny_model(kind: _Loads) -> None:
    load = kind.from_pretrained

    def from_pretrained(name: Any, *arguments: Any, **options: Any) -> Any:
        local = Path(str(name)).is_dir()
        return load(name if local else _MODEL, *arguments, **options)

    kind.from_pretrained = from_pretrained


_load_the_tiny_model(AutoTokenizer)
_load_the_tiny_model(AutoConfig)


def _snapshot(self: Any, repo_id: str, **options: Any) -> str:
    return os.environ["ORCH_UPSTREAM_ADAPTER"]  # what these tests take whole


huggingface_hub.HfApi.snapshot_download = _snapshot
_get_tokenizer = vllm.tokenizers.get_tokenizer


def _get_tiny_tokenizer(*arguments: Any, **options: Any) -> Any:
    name = arguments[0] if arguments else options.pop("tokenizer_name")
    local = Path(str(name)).is_dir()
    return _get_tokenizer(name if local else _MODEL, *arguments[1:], **options)


vllm.tokenizers.get_tokenizer = _get_tiny_tokenizer


class HfRunner:
    """For type hints: no test compares with a model of the hub."""


class VllmRunner(HfRunner):
    """The same of vLLM's own."""
