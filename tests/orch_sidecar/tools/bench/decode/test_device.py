"""Which device, and the error when there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from orch_sidecar.tools.bench.decode.device import DeviceUnavailable, open_device
from orch_sidecar.tools.bench.decode.measure import Bench
from orch_sidecar.tools.bench.decode.shape import ON_GPU


def test_cpu_is_described() -> None:
    device = open_device("cpu", None, None)
    assert device.kind == "cpu"
    assert device.name
    assert device.threads == torch.get_num_threads()
    assert device.dtype_name in ("bfloat16", "float32")
    assert device.cache_bytes is None or 2**15 < device.cache_bytes < 2**34
    assert device.free_bytes is None or device.free_bytes > 2**20


def test_threads_and_dtype_are_as_requested() -> None:
    before = torch.get_num_threads()
    try:
        device = open_device("cpu", "float16", 1)
        assert (device.threads, device.dtype_name) == (1, "float16")
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_without_torch_the_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(DeviceUnavailable, match="`pip install torch`"):
        open_device("auto", None, None)


def test_gpu_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceUnavailable, match=r"--device cuda:1: torch .* finds no GPU here"):
        open_device("cuda:1", None, None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(DeviceUnavailable, match="device cuda:1: there are 1 GPUs"):
        open_device("cuda:1", None, None)
    with pytest.raises(DeviceUnavailable, match="--threads 4: only a CPU has threads, not cuda"):
        open_device("cuda", None, 4)


@pytest.mark.parametrize(("name", "index"), [("auto", 0), ("cuda", 0), ("cuda:1", 1)])
def test_gpu_is_selected_by_its_index(
    name: str, index: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`torch.cuda.set_device` raises ValueError for a device without an index."""
    cuda = torch.cuda
    selected: list[torch.device] = []
    monkeypatch.setattr(cuda, "is_available", lambda: True)
    monkeypatch.setattr(cuda, "device_count", lambda: 2)
    monkeypatch.setattr(cuda, "set_device", selected.append)
    monkeypatch.setattr(cuda, "is_bf16_supported", lambda **_options: True)
    monkeypatch.setattr(cuda, "get_device_name", lambda _place: "H200")
    monkeypatch.setattr(cuda, "mem_get_info", lambda _place: (1, 2))
    properties = SimpleNamespace(L2_cache_size=60)
    monkeypatch.setattr(cuda, "get_device_properties", lambda _place: properties)
    device = open_device(name, None, None)
    assert selected == [device.place] == [torch.device("cuda", index)]
    assert device.name == "H200"


def test_auto_is_the_cpu_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert open_device("auto", None, None).kind == "cpu"


def test_model_that_does_not_fit_in_memory_is_rejected_before_it_is_made() -> None:
    device = open_device("cpu", "float32", None)
    message = r"a KV cache of 16 sequences need 4\.6 GB, but 4\.0 GB are free"
    with pytest.raises(DeviceUnavailable, match=message):
        Bench(replace(device, free_bytes=4 * 10**9), ON_GPU, bmax=16, seed=1)


def test_environment_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    before = dict(os.environ)
    open_device("cpu", None, None)
    assert dict(os.environ) == before
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    open_device("cpu", None, None)
    assert os.environ["GOMP_SPINCOUNT"] == "7"


def test_reading_the_command_line_loads_no_torch() -> None:
    code = "import orch_sidecar.tools.bench.decode.cli, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
