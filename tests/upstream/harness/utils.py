"""`tests.utils` for vLLM's tests: a server is an engine of this project, with generated weights.

The name of any model is that of the tiny model. An engine runs on for the second pass over the
same tests, which goes through the sidecar: ORCH_UPSTREAM says which.
"""

from __future__ import annotations

import atexit
import os
import tempfile
from pathlib import Path
from typing import Any, Final, Self

import anthropic
import openai

from orch_sidecar.tools.local.stack import Plan, Stack

MODEL: Final = os.environ["ORCH_UPSTREAM_MODEL"]
# Of GPUs, of downloads, or decided by the profile.
_WITH_VALUE: Final = {
    "--dtype", "--gpu-memory-utilization", "--max-model-len", "--load-format", "--tokenizer",
    "--chat-template", "--revision", "--hf-overrides", "--served-model-name", "--max-num-seqs",
    "--seed", "--attention-backend", "--port",
    "--reasoning-parser",  # the tiny model has no tokens for that
}  # fmt: skip
_POOLING: Final = {"--runner", "--convert", "--pooler-config"}
_READY_WITHIN_S: Final = 600.0
_running: dict[tuple[str, ...], Stack] = {}


@atexit.register
def _stop_all() -> None:
    for stack in _running.values():
        stack.stop()


class RemoteOpenAIServer:
    """The server of a test module."""

    DUMMY_API_KEY = "token-abc123"

    def __init__(
        self, model: str, vllm_serve_args: list[str], *, env_dict: Any = None, **_: Any
    ) -> None:
        """`vllm_serve_args`: those that a machine without a GPU and a hub can follow."""
        names = _names(model, vllm_serve_args)
        arguments = (
            *("--enforce-eager", "--dtype", "float32", "--max-model-len", "2048"),
            *("--served-model-name", *names, *_kept(vllm_serve_args)),
            *os.environ.get("ORCH_UPSTREAM_ARGUMENTS", "").split(),
        )
        if arguments not in _running:
            stack = _running[arguments] = Stack(
                Plan(
                    profile="cloud",
                    model=MODEL,
                    engine_arguments=arguments,
                    environ={"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
                    | (env_dict or {}),
                    log_directory=Path(tempfile.mkdtemp()),
                )
            )
            stack.start_engine()
            stack.start_sidecar()
            stack.wait_ready(_READY_WITHIN_S, lambda waited, what: None)
        self._stack = _running[arguments]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        """It runs on."""

    @property
    def url_root(self) -> str:
        directly = os.environ["ORCH_UPSTREAM"] == "directly"
        return self._stack.engine_url if directly else self._stack.url

    def url_for(self, *parts: str) -> str:
        return "/".join((self.url_root, *(part.strip("/") for part in parts)))

    def get_client(self, **more: Any) -> openai.OpenAI:
        return openai.OpenAI(**_options(f"{self.url_root}/v1", more))

    def get_async_client(self, **more: Any) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(**_options(f"{self.url_root}/v1", more))

    def get_client_anthropic(self, **more: Any) -> anthropic.Anthropic:
        return anthropic.Anthropic(**_options(self.url_root, more))

    def get_async_client_anthropic(self, **more: Any) -> anthropic.AsyncAnthropic:
        return anthropic.AsyncAnthropic(**_options(self.url_root, more))


def _options(url: str, more: dict[str, Any]) -> dict[str, Any]:
    return {
        "base_url": url, "api_key": RemoteOpenAIServer.DUMMY_API_KEY, "max_retries": 0,
        "timeout": 120,
    } | more  # fmt: skip


def _names(model: str, arguments: list[str]) -> list[str]:
    """The served names: what follows the option, up to the next one."""
    if "--served-model-name" not in arguments:
        return [model]
    names = []
    for word in arguments[arguments.index("--served-model-name") + 1 :]:
        if word.startswith("--"):
            break
        names.append(word)
    return names


def _kept(arguments: list[str]) -> tuple[str, ...]:
    kept: list[str] = []
    words = iter(arguments)
    for word in words:
        if word.partition("=")[0].replace("_", "-") in _WITH_VALUE | _POOLING:
            if "=" not in word:
                next(words)
        elif word not in ("--enforce-eager", "--trust-remote-code"):
            kept.append(word)
    return tuple(kept)
