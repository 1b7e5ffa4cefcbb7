"""Makes LoRA adapters for the models of these tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

RANK: Final = 4


def write_adapter(directory: Path, model: Path) -> Path:
    """A LoRA adapter of a model, of zeros: it changes nothing."""
    import numpy  # as the engine brings it
    from safetensors.numpy import save_file

    sizes = json.loads((model / "config.json").read_text(encoding="utf-8"))
    hidden = sizes["hidden_size"]
    heads = sizes["num_attention_heads"] * sizes["head_dim"]
    config = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": RANK,
        "target_modules": ["q_proj"], "bias": "none", "lora_dropout": 0.0,
        "base_model_name_or_path": str(model),
    }  # fmt: skip
    directory.mkdir()
    (directory / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    weights = {}
    for layer in range(sizes["num_hidden_layers"]):
        name = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        weights[f"{name}.lora_A.weight"] = numpy.zeros((RANK, hidden), numpy.float32)
        weights[f"{name}.lora_B.weight"] = numpy.zeros((heads, RANK), numpy.float32)
    save_file(weights, directory / "adapter_model.safetensors")
    return directory
