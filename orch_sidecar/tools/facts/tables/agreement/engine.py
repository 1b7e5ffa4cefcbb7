"""What the notes state about an engine's configuration, and the fields that depend on it.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from orch_sidecar.tools.facts.tables.agreement.load import Finding
from orch_sidecar.tools.facts.tables.notes import GIVEN, PREFIX_HIT_RATIO

# The precisions of a model that is not quantized, as vLLM loads it.
_PRECISIONS: Final = ("BF16", "FP16", "FP32")


def engine_contradictions(gpu_count: int | None, notes: Mapping[str, str]) -> Iterator[Finding]:
    """Yields the notes about the engine that contradict each other, or the number of GPUs.

    `gpu_count`: None where it is unknown.
    """
    ratio = notes.get(PREFIX_HIT_RATIO, "0")
    if notes.get("prefix_caching") == "off" and float(ratio) > 0:
        yield f"{PREFIX_HIT_RATIO}={ratio}", "must be 0 with prefix_caching=off"
    if notes.get("speculative") == "none" and "acceptance_length" in notes:
        accepted = notes["acceptance_length"]
        yield f"acceptance_length={accepted}", "must be absent with speculative=none"
    yield from _accepted(notes)
    yield from _ranks(gpu_count, notes)


def _accepted(notes: Mapping[str, str]) -> Iterator[Finding]:
    """Compares the tokens that a step accepted with those that it could: one, and its drafts."""
    accepted, drafts = (
        notes.get("acceptance_length"),
        notes.get("speculative", "").partition(":")[2],
    )
    if accepted is not None and drafts and float(accepted) > 1 + int(drafts):
        rule = f"must be at most {1 + int(drafts)} with speculative={notes['speculative']}"
        yield f"acceptance_length={accepted}", rule


def gpu_count_rule(gpu: str, gpu_count: int) -> str | None:
    """Returns the rule that the number of GPUs violates, given their name."""
    on_cpu = gpu == "CPU" or gpu.startswith("CPU ")
    if on_cpu and gpu_count:
        return f"must be 0: gpu is {gpu}"
    if not on_cpu and not gpu_count:
        return f"must be at least 1: gpu is {gpu}, without one it is CPU (<model of the processor>)"
    return None


def _ranks(gpu_count: int | None, notes: Mapping[str, str]) -> Iterator[Finding]:
    """Compares the ranks with the accelerators: each rank of an engine has one of its own.

    On CPUs the ranks share the machine, and `gpu_count` is 0. A number that the user declared is
    compared, too: it is as wrong.
    """
    names = ("tensor_parallel", "pipeline_parallel")
    stated = [name for name in names if name in notes]
    ranks = 1
    for name in stated:
        ranks *= int(notes[name])
    if gpu_count and ranks > gpu_count:
        rule = f"must be at most gpu_count, {gpu_count}: each rank has an accelerator of its own"
        yield " * ".join(f"{name}={notes[name]}" for name in stated), rule


def precision_contradictions(precision: str, notes: Mapping[str, str]) -> Iterator[Finding]:
    """Yields the note `quantization` where the column `precision` contradicts it.

    An engine reports the method of a quantized model as its precision. A precision that the user
    declared may have any name.
    """
    method = notes.get("quantization")
    if method is None or "precision" in notes.get(GIVEN, "").split(","):
        return
    if method == "none" and precision not in _PRECISIONS:
        yield "quantization=none", f"must have a precision of {', '.join(_PRECISIONS)}"
    if method != "none" and precision != method.upper():
        yield f"quantization={method}", f"must have the precision {method.upper()}, not {precision}"


def served_as_contradictions(model_id: str, notes: Mapping[str, str]) -> Iterator[Finding]:
    """Yields the note of another served name where it is the model's own id."""
    if notes.get("served_as") == model_id:
        rule = "must be absent: it equals model_id"
        yield f"served_as={model_id}", rule
