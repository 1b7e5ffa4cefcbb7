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
from orch_sidecar.tools.bench.decode.device import open_device
from orch_sidecar.tools.bench.decode.measure import Kernel
from orch_sidecar.tools.bench.decode.shape import ON_CPU, ON_GPU


def test_cpu_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    device = open_device()
    info = device.info
    assert (info.kind, info.shape) == ("cpu", ON_CPU)
    assert info.name
    assert info.threads == torch.get_num_threads()
    assert info.dtype in ("bfloat16", "float32")
    assert info.weight_bytes == ON_CPU.weights * (2 if info.dtype == "bfloat16" else 4)
    assert info.cache_bytes is None or 2**15 < info.cache_bytes < 2**34
    assert device.free_bytes is None or device.free_bytes > 2**20


def test_without_torch_the_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(Unavailable, match="`pip install torch`"):
        open_device()


def test_gpu_is_selected_by_its_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """`torch.cuda.set_device` raises ValueError for a device without an index."""
    cuda = torch.cuda
    selected: list[torch.device] = []
    monkeypatch.setattr(cuda, "is_available", lambda: True)
    monkeypatch.setattr(cuda, "set_device", selected.append)
    monkeypatch.setattr(cuda, "is_bf16_supported", lambda **_options: True)
    monkeypatch.setattr(cuda, "get_device_name", lambda _place: "H200")
    monkeypatch.setattr(cuda, "mem_get_info", lambda _place: (1, 2))
    properties = SimpleNamespace(L2_cache_size=60)
    monkeypatch.setattr(cuda, "get_device_properties", lambda _place: properties)
    device = open_device()
    assert selected == [device.place] == [torch.device("cuda", 0)]
    assert (device.info.name, device.info.shape) == ("H200", ON_GPU)


def test_model_that_does_not_fit_in_memory_is_rejected_before_it_is_made() -> None:
    device = open_device()
    needed = device.info.weight_bytes + 16 * device.info.kv_bytes_per_sequence
    with pytest.raises(Unavailable, match="a KV cache of 16 sequences need"):
        Kernel(replace(device, free_bytes=needed - 1), bmax=16, seed=1)


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
