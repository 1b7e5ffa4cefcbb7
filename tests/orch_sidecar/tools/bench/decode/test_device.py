"""Which device, and the error when there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from orch_sidecar.tools.arguments import Unavailable
from orch_sidecar.tools.bench.decode import measure
from orch_sidecar.tools.bench.decode.device import ON_CPU, ON_GPU, Shape, open_device


def test_cpu_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    info = open_device()
    assert (info.kind, info.shape) == ("cpu", ON_CPU)
    assert info.name
    assert info.threads == torch.get_num_threads()
    assert info.dtype in ("bfloat16", "float32")
    assert info.weight_bytes == ON_CPU.weights * (2 if info.dtype == "bfloat16" else 4)
    assert info.cache_bytes is None or 2**15 < info.cache_bytes < 2**34


def test_without_torch_the_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(Unavailable, match="`pip install torch`"):
        open_device()


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
    monkeypatch.setattr(measure, "memory_bytes", {"MemAvailable": free - 1}.get)
    with pytest.raises(Unavailable, match="a KV cache of 16 sequences need"):
        measure.Kernel(device, bmax=16, seed=1)


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
