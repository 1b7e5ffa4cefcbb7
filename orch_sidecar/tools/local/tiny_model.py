"""Makes a small Llama model with random weights, for machines without access to a model hub.

`python -m orch_sidecar.tools.local.tiny_model DIRECTORY [--size tiny|small]`

Its text is nonsense, but its parts are realistic: a byte-level BPE tokenizer trained on the texts
below, a chat template, and weights from a fixed seed, so that every machine makes the same model.
Needs transformers, tokenizers and torch, which come with vLLM; imports them only when called.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Final

CONTEXT_TOKENS: Final = 2048

# (hidden size, layers, heads): 3.0 M and 89 M parameters.
SIZES: Final = {"tiny": (256, 4, 4), "small": (1024, 8, 16)}

_TEXTS: Final = (
    "A slot is the right of one sequence to be in the engine's batch. The sidecar admits "
    "exactly as many sequences as the engine has slots, and the others wait in a queue.",
    "Tokens per second means nothing until you know how the engine was batching: one stream, "
    "many streams merged into one decode step, or an artificially large batch.",
    "Prefill reads the whole prompt at once; decode writes one token per step for each "
    "sequence in the batch. The time to the first token is the wait plus the prefill.",
    '{"name": "get_weather", "arguments": {"city": "Oslo", "unit": "celsius"}}',
    "0 1 2 3 4 5 6 7 8 9 10 20 30 40 50 60 70 80 90 100 1000 - + * / = ( ) [ ] < > ? ! : ; #",
    "Ein Satz auf Deutsch, une phrase en français, una frase en español, en mening på norsk.",
)

_CHAT_TEMPLATE: Final = (
    "{% for message in messages %}<|{{ message['role'] }}|>"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% elif message['content'] %}{% for part in message['content'] %}"
    "{{ part['text'] if part['type'] == 'text' else '' }}{% endfor %}{% endif %}<|end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

_SPECIAL: Final = ["<|begin|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>"]


def make(directory: Path, size: str = "tiny") -> None:
    """Writes the model to `directory`, unless a complete one exists there."""
    if (directory / "complete").exists():
        return
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    directory.mkdir(parents=True, exist_ok=True)
    bpe: Any = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.train_from_iterator(
        _TEXTS,
        trainers.BpeTrainer(
            vocab_size=1024,
            special_tokens=_SPECIAL,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token=_SPECIAL[0],
        eos_token=_SPECIAL[1],
        pad_token=_SPECIAL[1],
        model_max_length=CONTEXT_TOKENS,
    )
    tokenizer.chat_template = _CHAT_TEMPLATE
    tokenizer.save_pretrained(directory)

    hidden, layers, heads = SIZES[size]
    torch.manual_seed(20250928)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=hidden * 5 // 2,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        max_position_embeddings=CONTEXT_TOKENS,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        tie_word_embeddings=False,
        orch_random_weights=True,  # rows that are measured with it say so
    )
    model = LlamaForCausalLM(config).to(torch.float32)
    _always_write_text(model, len(_SPECIAL))
    model.save_pretrained(directory)
    (directory / "complete").touch()


def _always_write_text(model: Any, special: int) -> None:
    """Makes special tokens, the end among them, unlikely: of random weights each token would be
    one of them every two hundred, and a response as short or as empty as chance has it.

    The first hidden dimension is the same for all tokens, and no layer changes it; the weights of
    the logits subtract it from those of special tokens.
    """
    import torch

    with torch.no_grad():
        # The other values have a standard deviation of 0.02, and layers add to them.
        constant = model.config.hidden_size / 2048
        model.get_input_embeddings().weight[:, 0] = constant
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight[0] = 0
            layer.mlp.down_proj.weight[0] = 0
        logits = model.get_output_embeddings().weight
        logits[:special, 0] = -256 * constant


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes a small Llama model with random weights.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--size", choices=sorted(SIZES), default="tiny")
    options = parser.parse_args()
    make(options.directory, options.size)


if __name__ == "__main__":
    main()
