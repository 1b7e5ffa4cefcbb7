"""Which device, and steps on one, timed by the host's clock or by events on a GPU's timeline."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from time import perf_counter_ns
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from orch_sidecar.tools.arguments import Unavailable
from orch_sidecar.tools.bench.decode import device as module
from orch_sidecar.tools.bench.decode.device import (
    ON_CPU,
    ON_GPU,
    Device,
    HostEvent,
    Kernel,
    Shape,
    Timer,
    open_device,
)
from orch_sidecar.tools.bench.decode.schedule import TimedStep

SHAPE = Shape(layers=2, hidden=64, heads=4, kv_heads=2, context=3)


def test_cpu_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    info = open_device()
    assert (info.kind, info.shape) == ("cpu", ON_CPU)
    assert info.name
    assert info.threads == torch.get_num_threads()
    assert info.dtype in ("bfloat16", "float32")
    assert info.weight_bytes == ON_CPU.weights * (2 if info.dtype == "bfloat16" else 4)
    assert info.cache_bytes is None or 2**15 < info.cache_bytes < 2**34


def test_gpu_is_selected_by_its_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """`torch.cuda.set_device` raises ValueError for a device without an index."""
    cuda = torch.cuda
    selected: list[int] = []
    monkeypatch.setattr(cuda, "is_available", lambda: True)
    monkeypatch.setattr(cuda, "set_device", selected.append)
    monkeypatch.setattr(cuda, "is_bf16_supported", lambda **_options: True)
    properties = SimpleNamespace(L2_cache_size=60, name="H200")
    monkeypatch.setattr(cuda, "get_device_properties", lambda _place: properties)
    device = open_device()
    assert selected == [0]
    assert (device.kind, device.name, device.shape) == ("cuda", "H200", ON_GPU)


def test_model_that_does_not_fit_in_memory_is_rejected_before_it_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = replace(open_device(), kind="cpu")
    free = device.weight_bytes + 16 * device.kv_bytes_per_sequence
    monkeypatch.setattr(module, "memory_bytes", {"MemAvailable": free - 1}.get)
    with pytest.raises(Unavailable, match="a KV cache of 16 sequences need"):
        Kernel(device, bmax=16, seed=1)


def test_environment_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    before = dict(os.environ)
    open_device()
    assert dict(os.environ) == before
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    open_device()
    assert os.environ["GOMP_SPINCOUNT"] == "7"


def test_reading_the_command_line_loads_no_torch() -> None:
    code = "import orch_sidecar.tools.bench.decode.cli, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_counts_what_a_step_reads_and_multiplies() -> None:
    shape = Shape(layers=2, hidden=64, heads=4, kv_heads=2, context=10)
    assert (shape.head, shape.kv_width, shape.mlp) == (16, 32, 224)
    attention = 64 * 64 + 2 * 64 * 32 + 64 * 64  # queries, keys and values, output
    assert shape.weights == 2 * (attention + 3 * 64 * 224)
    assert shape.kv_values == 2 * 2 * 10 * 32
    assert shape.multiply_adds == shape.weights + 2 * 2 * 10 * 64


def test_a_layer_of_the_gpus_default_is_one_of_an_8b_model() -> None:
    assert ON_GPU.weights / ON_GPU.layers == 218_103_808  # Llama 3 8B: 6.98e9 in 32 layers
    assert ON_GPU.mlp == 14336


def test_defaults_are_bound_by_memory() -> None:
    """A step reads more for its weights than any sequence adds, and than a 32 MiB cache holds."""
    assert 2 * ON_CPU.weights > 1.5 * 2**25
    for shape in (ON_CPU, ON_GPU):
        assert shape.weights > 16 * shape.kv_values


@pytest.mark.parametrize(("iterations", "hidden"), [(16384, 96), (10**6, 768), (1, 32)])
def test_toy_takes_no_more_than_the_kernel_of_the_paper(iterations: int, hidden: int) -> None:
    toy = Shape.of_work(iterations)
    assert toy.hidden == hidden
    wider = Shape(toy.layers, hidden + 32, toy.heads, toy.kv_heads, toy.context)
    assert wider.multiply_adds > 8 * iterations
    assert hidden == 32 or toy.multiply_adds <= 8 * iterations


@pytest.fixture
def device() -> Device:
    return replace(open_device(), kind="cpu", dtype="float32", shape=SHAPE)


def naive_step(kernel: Kernel, states: Any, oldest: int) -> Any:
    """The same step by its definition: each query head with its own copy of keys and values."""
    layers: Any = kernel._layers
    batch, group = states.shape[0], SHAPE.heads // SHAPE.kv_heads

    def norm(x: Any) -> Any:
        return x / (x.pow(2).mean(-1, keepdim=True) + torch.finfo(x.dtype).eps).sqrt()

    for layer in layers:
        both = norm(states) @ layer.qkv.T
        query = both[:, : SHAPE.hidden].reshape(batch, SHAPE.heads, 1, SHAPE.head)
        kv = layer.kv[:, :batch].clone()
        for index, start in enumerate((SHAPE.hidden, SHAPE.hidden + SHAPE.kv_width)):
            new = both[:, start : start + SHAPE.kv_width]
            kv[index, :, :, oldest] = new.reshape(batch, SHAPE.kv_heads, SHAPE.head)
        keys, values = kv.repeat_interleave(group, dim=2)
        scores = (query @ keys.transpose(-1, -2) / SHAPE.head**0.5).softmax(-1)
        attended = (scores @ values).reshape(batch, SHAPE.hidden)
        states = states + attended @ layer.out.T
        gate, up = (norm(states) @ layer.gate_up.T).split(SHAPE.mlp, dim=-1)
        states = states + (gate * torch.sigmoid(gate) * up) @ layer.down.T
    return norm(states)


def test_step_is_attention_and_gated_mlp_by_their_definition(device: Device) -> None:
    """It appends one token to each active sequence, in place of the oldest."""
    kernel = Kernel(device, bmax=3, seed=1)
    for oldest in (0, 1, 2, 0):
        caches = [layer.kv.clone() for layer in kernel._layers]
        expected = naive_step(kernel, kernel.states[:2].clone(), oldest)
        kernel.step(2)
        torch.testing.assert_close(kernel.states[:2], expected, rtol=1e-4, atol=1e-5)
        for before, layer in zip(caches, kernel._layers, strict=True):
            changed = (before != layer.kv).any(dim=-1)  # (2, sequence, head, token)
            appended = torch.zeros_like(changed)
            appended[:, :2, :, oldest] = True
            assert torch.equal(changed, appended)


def test_sequences_differ_and_those_beyond_the_batch_are_left_alone(device: Device) -> None:
    kernel = Kernel(device, bmax=3, seed=1)
    last = kernel.states[2].clone()
    kernel.step(2)
    assert torch.equal(kernel.states[2], last)
    assert not torch.allclose(kernel.states[0], kernel.states[1])


def test_same_seed_computes_the_same(device: Device) -> None:
    kernels = [Kernel(device, bmax=2, seed=seed) for seed in (1, 1, 2)]
    for kernel in kernels:
        kernel.step(2)
    first, second, other = (kernel.states for kernel in kernels)
    assert torch.equal(first, second)
    assert not torch.allclose(first, other)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_states_stay_finite_over_many_steps(device: Device, dtype: str) -> None:
    kernel = Kernel(replace(device, dtype=dtype), bmax=2, seed=1)
    for _ in range(40):
        kernel.step(2)
    assert torch.isfinite(kernel.states).all()
    assert kernel.states.float().pow(2).mean().sqrt().item() == pytest.approx(1, rel=0.02)


def test_weights_and_caches_have_the_size_of_the_shape(device: Device) -> None:
    kernel = Kernel(device, bmax=3, seed=1)
    weights = sum(
        each.numel()
        for layer in kernel._layers
        for each in (layer.qkv, layer.out, layer.gate_up, layer.down)
    )
    assert weights == SHAPE.weights
    assert sum(layer.kv.numel() for layer in kernel._layers) == 3 * SHAPE.kv_values


def test_step_reads_nothing_back_from_the_device(device: Device) -> None:
    """What has no values cannot be read: the host would have to wait for them."""
    with FakeTensorMode():
        kernel = Kernel(device, bmax=3, seed=1)
        kernel.step(2)
        assert kernel.states.shape == (3, SHAPE.hidden)
        with pytest.raises(DataDependentOutputException):
            kernel.states[0, 0].item()


def spin(ms: float) -> None:
    until = perf_counter_ns() + ms * 1e6
    while perf_counter_ns() < until:
        pass


def test_timer_separates_steps_from_gaps() -> None:
    timer = Timer(HostEvent, spin)
    first = timer(3)
    assert first.gap_ms is None
    assert first.ms >= 3
    spin(1)
    second = timer(2)
    assert second.ms >= 2
    assert second.gap_ms is not None
    assert second.gap_ms >= 1


class Gpu:
    """Stands for torch.cuda: a queue whose work is done when an event is waited for."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.made = 0
        self.queue: list[float | ScriptedEvent] = []

    def Event(self, *, enable_timing: bool) -> ScriptedEvent:  # noqa: N802 (torch's name)
        assert enable_timing, "torch refuses to read an event that was made without"
        self.made += 1
        return ScriptedEvent(self)


class ScriptedEvent:
    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self.at_ms: float | None = None

    def record(self) -> None:
        self.at_ms = None
        self._gpu.queue.append(self)

    def synchronize(self) -> None:
        for each in self._gpu.queue:
            if isinstance(each, ScriptedEvent):
                each.at_ms = self._gpu.now_ms
            else:
                self._gpu.now_ms += each
        self._gpu.queue.clear()
        assert self.at_ms is not None

    def elapsed_time(self, end: ScriptedEvent) -> float:
        assert self.at_ms is not None, "torch refuses to read what is not over"
        assert end.at_ms is not None, "torch refuses to read what is not over"
        return end.at_ms - self.at_ms


def test_timer_reads_steps_and_gaps_from_the_gpus_timeline() -> None:
    gpu = Gpu()
    times_ms = iter([2.0, 4.0, 3.0, 1.0])
    timer = Timer(lambda: gpu.Event(enable_timing=True), lambda _: gpu.queue.append(next(times_ms)))
    found = [timer(7)]
    for gap_ms in (0.25, 0.5, 0.0):
        gpu.now_ms += gap_ms  # the GPU has nothing to do until the host launches
        found.append(timer(7))
    times = [(2.0, None), (4.0, 0.25), (3.0, 0.5), (1.0, 0.0)]
    assert found == [TimedStep(7, *each) for each in times]
    assert gpu.made == 4
