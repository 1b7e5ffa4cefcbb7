"""Makes a small cross-encoder of random weights: it reads a query and a document together.

`python -m tests.engine.cross_encoder_model DIRECTORY MODEL`: with tokenizer and shape of MODEL.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path


def make(directory: Path, like: Path) -> None:
    """Writes the model to `directory`."""
    import torch
    from transformers import LlamaConfig, LlamaForSequenceClassification

    directory.mkdir(parents=True, exist_ok=True)
    for path in (*like.glob("tokenizer*"), *like.glob("*.jinja")):
        shutil.copy(path, directory)
    torch.manual_seed(1)
    config = LlamaConfig.from_pretrained(like, num_labels=1)
    config.pad_token_id = config.eos_token_id
    LlamaForSequenceClassification(config).to(torch.float32).save_pretrained(directory)


if __name__ == "__main__":
    make(Path(sys.argv[1]), Path(sys.argv[2]))
