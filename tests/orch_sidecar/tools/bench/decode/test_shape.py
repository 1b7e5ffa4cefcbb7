"""Sizes of a model, and what they come to."""

from __future__ import annotations

import pytest

from orch_sidecar.tools.bench.decode.shape import ON_CPU, ON_GPU, Shape


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
