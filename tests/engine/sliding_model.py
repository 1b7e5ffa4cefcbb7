"""Makes a small model in which most layers look a few tokens back, like Gemma 3: random weights.

`python -m tests.engine.sliding_model DIRECTORY MODEL`: with the tokenizer of MODEL.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any, Final

LAYERS: Final = 6
WINDOW_TOKENS: Final = 256


def make(directory: Path, tokenizer_of: Path) -> None:
    """Writes the model to `directory`, where it is not complete. One layer has no window."""
    if (directory / "complete").exists():
        return
    import torch
    from transformers import AutoTokenizer, Gemma3ForCausalLM, Gemma3TextConfig

    directory.mkdir(parents=True, exist_ok=True)
    for path in (*tokenizer_of.glob("tokenizer*"), *tokenizer_of.glob("*.jinja")):
        shutil.copy(path, directory)
    tokenizer: Any = AutoTokenizer.from_pretrained(directory)
    torch.manual_seed(20250928)
    config = Gemma3TextConfig(
        vocab_size=len(tokenizer),
        hidden_size=256,
        intermediate_size=640,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=2048,
        sliding_window=WINDOW_TOKENS,
        query_pre_attn_scalar=64,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    assert config.layer_types.count("full_attention") == 1
    Gemma3ForCausalLM(config).to(torch.float32).save_pretrained(directory)
    (directory / "complete").touch()


if __name__ == "__main__":
    make(Path(sys.argv[1]), Path(sys.argv[2]))
