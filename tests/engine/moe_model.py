"""Makes a small mixture-of-experts model, like Mixtral: a configuration, of which vLLM makes random
weights (`--load-format dummy`), and the tokenizer of another model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

# What vLLM shards over the ranks is the intermediate size of each expert.
_CONFIG = {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "dtype": "float32",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 2048,
    "sliding_window": None,
    "tie_word_embeddings": False,
}


def make(directory: Path, tokenizer_of: Path) -> None:
    """Writes the model to `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    for path in (*tokenizer_of.glob("tokenizer*"), *tokenizer_of.glob("*.jinja")):
        shutil.copy(path, directory)
    theirs = json.loads((tokenizer_of / "config.json").read_text(encoding="utf-8"))
    same = {name: theirs[name] for name in ("vocab_size", "bos_token_id", "eos_token_id")}
    text = json.dumps(_CONFIG | same, indent=2)
    (directory / "config.json").write_text(text, encoding="utf-8")
