"""Makes a small Whisper model with random weights: it turns recordings into nonsense.

`python -m tests.engine.whisper_model DIRECTORY MODEL`: with the words of MODEL's tokenizer.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

_END: Final = "<|endoftext|>"
# Those of Whisper in the order of its vocabulary, with two of its languages.
SPECIAL: Final = [
    _END, "<|startoftranscript|>", "<|en|>", "<|de|>", "<|translate|>",
    "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>",
    *(f"<|{hundredths / 100:.2f}|>" for hundredths in range(0, 3002, 2)),
]  # fmt: skip


def make(directory: Path, model: Path) -> None:
    """Writes the model to `directory`."""
    import torch
    from transformers import (
        AutoTokenizer,
        WhisperConfig,
        WhisperFeatureExtractor,
        WhisperForConditionalGeneration,
    )

    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    tokenizer.add_special_tokens({"additional_special_tokens": SPECIAL})
    tokenizer.eos_token = tokenizer.pad_token = tokenizer.bos_token = _END
    tokenizer.chat_template = None
    tokenizer.save_pretrained(directory)
    ids = {name: tokenizer.convert_tokens_to_ids(name) for name in SPECIAL}
    WhisperFeatureExtractor().save_pretrained(directory)
    torch.manual_seed(20250928)
    end = ids[_END]
    config = WhisperConfig(
        vocab_size=len(tokenizer),
        d_model=128, encoder_layers=1, decoder_layers=1,
        encoder_attention_heads=2, decoder_attention_heads=2,
        encoder_ffn_dim=256, decoder_ffn_dim=256,
        decoder_start_token_id=ids["<|startoftranscript|>"],
        bos_token_id=end, eos_token_id=end, pad_token_id=end,
        suppress_tokens=[], begin_suppress_tokens=[],
    )  # fmt: skip
    whisper = WhisperForConditionalGeneration(config).to(torch.float32)
    words = [at for name, at in tokenizer.get_vocab().items() if name.isascii() and at < ids[_END]]
    silent = [at for at in range(len(tokenizer)) if at not in words]
    with torch.no_grad():  # it says words alone: the output has the weights of the input
        whisper.model.decoder.embed_tokens.weight[silent] = 0.0
    whisper.save_pretrained(directory)


if __name__ == "__main__":
    make(Path(sys.argv[1]), Path(sys.argv[2]))
