"""Finds what the package uses of vLLM: imports, and attributes of vLLM's objects.

Reads syntax only. vLLM's objects enter the package under few names (`_ROOTS`); attributes are
followed through assignments, by the types of vLLM's attributes (`_TYPES`).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import vllm_plugin

PACKAGE: Final = Path(vllm_plugin.__file__).parent

Place = tuple[str, str]  # file, class

_ARGUMENTS: Final = ("engine/arg_utils.py", "EngineArgs")
_CONFIG: Final = ("config/vllm.py", "VllmConfig")
_PARALLEL: Final = ("config/parallel.py", "ParallelConfig")
_SCHEDULER: Final = ("config/scheduler.py", "SchedulerConfig")
_TRANSFER: Final = ("config/kv_transfer.py", "KVTransferConfig")
_STATISTICS: Final = "v1/metrics/stats.py"
_CACHE_STATISTICS: Final = (_STATISTICS, "BaseCacheStats")
_CLIENT: Final = ("v1/engine/async_llm.py", "AsyncLLM")
_PLATFORM: Final = ("platforms/interface.py", "Platform")
_ENGINE: Final = ("engine/protocol.py", "EngineClient")

# Modules that use vLLM's objects, and the names of those objects there.
_ROOTS: Final[dict[str, dict[str, Place]]] = {
    "register": {
        "vllm_config": _CONFIG,
        "config": _CONFIG,
        "engine_client": _CLIENT,
        "current_platform": _PLATFORM,
    },
    "adapters/worker_extension": {
        "self": ("v1/worker/worker_base.py", "WorkerBase"),
        "Sampler": ("v1/sample/sampler.py", "Sampler"),
        "layer": ("model_executor/layers/attention_layer_base.py", "AttentionLayerBase"),
        "layer.get_attn_backend()": ("v1/attention/backend.py", "AttentionBackend"),
    },
    "enforcement/enforce": {
        "args": _ARGUMENTS,
        "config": _CONFIG,
        "scheduler_config": _SCHEDULER,
    },
    "enforcement/sharing": {"config": _TRANSFER, "args": _ARGUMENTS, "parallel": _PARALLEL},
    "adapters/vllm_config": {
        "vllm_config": _CONFIG,
        "engine_client": _CLIENT,
        "current_platform": _PLATFORM,
    },
    "adapters/stat_logger": {
        "scheduler_stats": (_STATISTICS, "SchedulerStats"),
        "iteration_stats": (_STATISTICS, "IterationStats"),
    },
    "state/engine_facts": {"vllm_config": _CONFIG},
    "state/engine_speed": {"scheduler_stats": (_STATISTICS, "SchedulerStats")},
    "evidence/chains": {"finished": (_STATISTICS, "FinishedRequestStats")},
    "endpoint": {
        "serving": ("entrypoints/speech_to_text/base/serving.py", ""),
        "engine_client": _ENGINE,
        "self._engine": _ENGINE,
        "self._models": ("entrypoints/openai/models/serving.py", "OpenAIServingModels"),
        "base": ("entrypoints/openai/models/protocol.py", "BaseModelPath"),
    },
}
_TYPES: Final[dict[tuple[Place, str], Place]] = {
    (_CLIENT, "vllm_config"): _CONFIG,
    (("v1/worker/worker_base.py", "WorkerBase"), "vllm_config"): _CONFIG,
    (_CLIENT, "engine_core"): ("v1/engine/core_client.py", "AsyncMPClient"),
    (_CONFIG, "model_config"): ("config/model.py", "ModelConfig"),
    (_CONFIG, "cache_config"): ("config/cache.py", "CacheConfig"),
    (_CONFIG, "scheduler_config"): _SCHEDULER,
    (_CONFIG, "parallel_config"): _PARALLEL,
    (_CONFIG, "speculative_config"): ("config/speculative.py", "SpeculativeConfig"),
    (_CONFIG, "observability_config"): ("config/observability.py", "ObservabilityConfig"),
    (_CONFIG, "kv_transfer_config"): _TRANSFER,
    (_CONFIG, "load_config"): ("config/load.py", "LoadConfig"),
    (_CONFIG, "lora_config"): ("config/lora.py", "LoRAConfig"),
    (_CONFIG, "compilation_config"): ("config/compilation.py", "CompilationConfig"),
    ((_STATISTICS, "SchedulerStats"), "prefix_cache_stats"): _CACHE_STATISTICS,
    ((_STATISTICS, "SchedulerStats"), "connector_prefix_cache_stats"): _CACHE_STATISTICS,
    ((_STATISTICS, "SchedulerStats"), "iteration_details"): (
        _STATISTICS,
        "SchedulerIterationDetails",
    ),
}
# Functions that read an attribute by its name, such as getattr(object, "name").
_GETTERS: Final = ("getattr", "hasattr", "_get")


class _Reader(ast.NodeVisitor):
    """Collects the uses in one module, in the order of its text."""

    def __init__(self, roots: dict[str, Place]) -> None:
        self._known = dict(roots)
        self.used: set[tuple[str, str, str]] = set()

    def _place(self, node: ast.expr) -> Place | None:
        """Returns the class of vLLM that an expression has, if it is known."""
        if (name := ast.unparse(node)) in self._known:
            return self._known[name]
        if isinstance(node, ast.Attribute):
            owner, attribute = self._place(node.value), node.attr
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in _GETTERS
            and isinstance(node.args[1], ast.Constant)
        ):
            owner, attribute = self._place(node.args[0]), str(node.args[1].value)
        else:
            return None
        if owner is None:
            return None
        self.used.add((*owner, attribute))
        return _TYPES.get((owner, attribute))

    def visit_Assign(self, node: ast.Assign) -> None:
        self.generic_visit(node)
        pairs: list[tuple[ast.expr, ast.expr]] = []
        for target in node.targets:
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs += zip(target.elts, node.value.elts, strict=True)
            else:
                pairs.append((target, node.value))
        for name, value in pairs:
            if (place := self._place(value)) is not None:
                self._known[ast.unparse(name)] = place

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self._place(node)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        self._place(node)
        self.generic_visit(node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        if module.split(".")[0] == "vllm":
            file = "/".join(module.split(".")[1:])
            for each in node.names:
                self.used.add((file, "", each.name))


def attributes() -> set[tuple[str, str, str]]:
    """Returns (file, class, attribute) for each attribute of vLLM's objects that is used, and
    (module, "", name) for each import, the module with slashes and without its suffix."""
    found: set[tuple[str, str, str]] = set()
    for path in PACKAGE.rglob("*.py"):
        module = path.relative_to(PACKAGE).with_suffix("").as_posix()
        reader = _Reader(_ROOTS.get(module, {}))
        reader.visit(ast.parse(path.read_text(encoding="utf-8")))
        found |= reader.used
    return found


def strings(module: str) -> Iterator[str]:
    """Yields all strings of a module: `state/engine_facts`."""
    for node in ast.walk(ast.parse((PACKAGE / f"{module}.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
