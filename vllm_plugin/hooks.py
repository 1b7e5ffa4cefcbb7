"""What of vLLM this package touches, as data; and the self-test that looks for it.

The same check serves the running engine (sources of the installed package) and releases that
cannot run here (sources or outlines of their wheels). It reads syntax, imports nothing and
executes nothing: an outline maps `Class.method` to parameter names and `Class` to its fields.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

Outline = Mapping[str, list[str]]


@dataclass(frozen=True, slots=True)
class Hook:
    """A place in vLLM: module file, what is in it, the names it must have, what needs it."""

    file: str
    what: str
    names: tuple[str, ...]
    needed_for: str


HOOKS: Final = (
    Hook(
        "plugins/__init__.py",
        "",
        (
            "DEFAULT_PLUGINS_GROUP",
            "STAT_LOGGER_PLUGINS_GROUP",
            "ENDPOINT_PLUGINS_GROUP",
            "load_general_plugins",
            "load_endpoint_plugins",
        ),
        "entry points",
    ),
    Hook(
        "engine/arg_utils.py",
        "EngineArgs",
        (
            "max_num_seqs",
            "max_num_active_seqs",
            "max_num_batched_tokens",
            "max_model_len",
            "long_prefill_token_threshold",
            "scheduling_policy",
            "data_parallel_size",
            "scheduler_cls",
            "kv_transfer_config",
            "otlp_traces_endpoint",
            "enable_logging_iteration_details",
            "_api_process_count",
        ),
        "enforcement",
    ),
    Hook(
        "engine/arg_utils.py",
        "EngineArgs.create_engine_config",
        ("self", "usage_context"),
        "enforcement",
    ),
    Hook(
        "config/scheduler.py",
        "SchedulerConfig",
        (
            "max_num_seqs",
            "max_num_active_seqs",
            "max_num_batched_tokens",
            "long_prefill_token_threshold",
            "policy",
            "max_num_queued_reqs",
            "max_num_queued_tokens",
        ),
        "slots_total, features, rate_limits",
    ),
    Hook(
        "v1/metrics/loggers.py",
        "StatLoggerBase.record",
        ("self", "scheduler_stats", "iteration_stats", "mm_cache_stats", "engine_idx"),
        "scheduler state",
    ),
    Hook(
        "v1/metrics/stats.py",
        "SchedulerStats",
        (
            "num_running_reqs",
            "num_waiting_reqs",
            "num_skipped_waiting_reqs",
            "kv_cache_usage",
            "iteration_details",
        ),
        "scheduler state",
    ),
    Hook(
        "v1/metrics/stats.py",
        "SchedulerIterationDetails",
        (
            "num_ctx_requests",
            "num_ctx_tokens",
            "num_generation_requests",
            "num_generation_tokens",
            "elapsed_ms",
            "is_dummy",
        ),
        "batch sizes, step times",
    ),
    Hook("v1/metrics/stats.py", "IterationStats", ("num_preempted_reqs",), "preemptions"),
    Hook(
        "plugins/endpoint_plugins/interface.py",
        "EndpointPlugin.attach_router",
        ("self", "app"),
        "/v1/capabilities",
    ),
    Hook(
        "plugins/endpoint_plugins/interface.py",
        "EndpointPlugin.init_state",
        ("self", "engine_client", "state", "args"),
        "/v1/capabilities",
    ),
    Hook("platforms/interface.py", "Platform", ("is_cpu", "get_device_name"), "hardware"),
    Hook(
        "entrypoints/openai/models/serving.py",
        "OpenAIServingModels",
        ("base_model_paths", "lora_requests"),
        "models",
    ),
    Hook("engine/protocol.py", "EngineClient", ("is_running", "errored"), "end of the stream"),
    Hook(
        "tracing/utils.py",
        "SpanAttributes",
        (
            "GEN_AI_USAGE_PROMPT_TOKENS",
            "GEN_AI_USAGE_COMPLETION_TOKENS",
            "GEN_AI_LATENCY_TIME_IN_MODEL_INFERENCE",
            "GEN_AI_REQUEST_ID",
        ),
        "span labels",
    ),
)


@dataclass(frozen=True, slots=True)
class Finding:
    """A hook, and which of its names were missed; all of them when the place is gone."""

    hook: Hook
    missed: tuple[str, ...]


def outline(source: str) -> dict[str, list[str]]:
    """The names in a module: top level under "", fields per class, parameters per function."""
    found: dict[str, list[str]] = {"": []}

    def visit(body: list[ast.stmt], prefix: str) -> None:
        names = found.setdefault(prefix, [])
        for node in body:
            if isinstance(node, ast.ClassDef):
                names.append(node.name)
                visit(node.body, f"{prefix}.{node.name}" if prefix else node.name)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                names.append(node.name)
                key = f"{prefix}.{node.name}" if prefix else node.name
                arguments = node.args
                found[key] = [
                    a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
                ]
                if node.name == "__init__":
                    names.extend(_assigned_to_self(node))
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                names.append(node.target.id)
            elif isinstance(node, ast.Assign):
                names.extend(t.id for t in node.targets if isinstance(t, ast.Name))

    visit(ast.parse(source).body, "")
    return found


def _assigned_to_self(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    targets: list[ast.expr] = []
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            targets.extend(node.targets)
        elif isinstance(node, ast.AnnAssign):
            targets.append(node.target)
    return [
        target.attr
        for target in targets
        if isinstance(target, ast.Attribute)
        and isinstance(target.value, ast.Name)
        and target.value.id == "self"
    ]


def check(outline_of: Callable[[str], Outline | None]) -> list[Finding]:
    """Looks for every hook. `outline_of` gives a file's outline, None if there is no such file."""
    findings = []
    for hook in HOOKS:
        names = (outline_of(hook.file) or {}).get(hook.what)
        missed = hook.names if names is None else tuple(n for n in hook.names if n not in names)
        findings.append(Finding(hook, missed))
    return findings


def outlines_below(root: Path) -> Callable[[str], Outline | None]:
    """Outlines of the sources of a vLLM package whose directory is `root`."""
    known: dict[str, Outline | None] = {}

    def outline_of(file: str) -> Outline | None:
        if file not in known:
            path = root / file
            known[file] = outline(path.read_text(encoding="utf-8")) if path.is_file() else None
        return known[file]

    return outline_of


def report(version: str, findings: list[Finding]) -> tuple[str, bool]:
    """One text for the log, and whether every hook was found."""
    missed = [finding for finding in findings if finding.missed]
    lines = [f"orch: vLLM {version}: {len(findings) - len(missed)} of {len(findings)} hooks found"]
    for finding in findings:
        place = f"{finding.hook.file}:{finding.hook.what or '(module)'}"
        if finding.missed:
            lines.append(
                f"  MISSED {place}: {', '.join(finding.missed)} "
                f"(needed for {finding.hook.needed_for})"
            )
        else:
            lines.append(f"  found {place} ({finding.hook.needed_for})")
    return "\n".join(lines), not missed
