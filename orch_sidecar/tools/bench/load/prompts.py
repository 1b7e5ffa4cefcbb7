"""Prompts, synthetic or of a file, and the request bodies made of them.

The entries of a file are objects of one of these kinds, one after the other (JSONL) or in one JSON
list:

    {"prompt": "a text", "output_tokens": 16}   as in `vllm bench serve --dataset-name custom`
    {"prompt": [1, 2, 3], "output_tokens": 16}  token ids
    {"messages": [{"role": "user", ...}], ...}  a chat
    {"conversations": [{"from": "human", "value": "a text"}, ...]}  as in ShareGPT

An entry without `output_tokens` gets the number from the command line. The prompt of a
conversation is the text of its first human turn; the recorded answer is another model's, so its
length is not used. Conversations without a human turn are skipped; ShareGPT has some.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Annotated, Any, Final

from msgspec import UNSET, Meta, Struct, UnsetType, convert, field

from orch_sidecar.tools.facts.labels.documents import documents_in, named

# vLLM's prefix cache stores whole blocks of a prompt, of 16 tokens or more.
BLOCK_TOKENS: Final = 16

# Without effect in vLLM at temperature 0; makes an engine that samples anyway repeatable.
SEED: Final = 0

_Ids = Annotated[tuple[Annotated[int, Meta(ge=0)], ...], Meta(min_length=1)]

_HUMAN: Final = ("human", "user")


class _Turn(Struct):
    sender: str = field(name="from")
    value: str


class Prompt(Struct, frozen=True):
    """The prompt of one request, as an entry of a file has it: token ids, a text, or a chat; or,
    in a file alone, a conversation that begins with it.

    `output_tokens`: the requested number; 0: that of the command line.
    """

    prompt: _Ids | Annotated[str, Meta(min_length=1)] | UnsetType = UNSET
    output_tokens: Annotated[int, Meta(ge=1)] = 0
    messages: Annotated[list[dict[str, Any]], Meta(min_length=1)] | UnsetType = UNSET
    conversations: list[_Turn] | UnsetType = UNSET

    def __post_init__(self) -> None:
        if [self.prompt, self.messages, self.conversations].count(UNSET) != 2:
            raise ValueError("an entry must have exactly one of prompt, messages, conversations")

    @property
    def input_tokens(self) -> int | None:
        """How many tokens it has; None where only the engine can count them."""
        return len(self.prompt) if isinstance(self.prompt, tuple) else None

    @property
    def path(self) -> str:
        """The path of the API that takes it."""
        return "/v1/completions" if self.messages is UNSET else "/v1/chat/completions"


def body(prompt: Prompt, model: str, *, ignore_eos: bool, salt: str | None = None) -> bytes:
    """Returns the JSON body for `prompt.path`: of a stream, which ends with its usage.

    Sampling is greedy, so that runs are repeatable. `ignore_eos`, which is vLLM's and not part of
    OpenAI's API, generates exactly `output_tokens`, so that two runs do the same work; `min_tokens`
    covers models with further stop tokens, which it does not ignore. `salt`: vLLM's `cache_salt`:
    a second run of the same seed or file would otherwise find its prompts in the prefix cache.
    """
    is_chat = prompt.prompt is UNSET
    document: dict[str, Any] = {
        "model": model,
        "messages" if is_chat else "prompt": prompt.messages if is_chat else prompt.prompt,
        "max_tokens": prompt.output_tokens,
        "temperature": 0.0,
        "seed": SEED,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if ignore_eos:
        document |= {"ignore_eos": True, "min_tokens": prompt.output_tokens}
    if salt is not None:
        document["cache_salt"] = salt
    return json.dumps(document, separators=(",", ":")).encode("ascii")


def synthetic(
    ids: Sequence[int], input_tokens: int, output_tokens: int, seed: int
) -> Iterator[Prompt]:
    """Yields random prompts of exactly `input_tokens` ids, without end.

    No two have the same first block, so the prefix cache has no hits within a run; it has none of
    prompts that are shorter than a block. Across runs it may, as the same seed gives the same
    prompts. `ids`: as `capabilities.vocabulary` has them.
    """
    pool = sorted(set(ids))
    # The length is part of the seed, so that long prompts do not begin like short ones.
    random = Random(f"{seed} prompts of {input_tokens}")  # noqa: S311 (no secret)
    used: set[tuple[int, ...]] = set()
    while True:
        drawn = tuple(random.choices(pool, k=input_tokens))
        if input_tokens >= BLOCK_TOKENS:
            if drawn[:BLOCK_TOKENS] in used:
                continue
            used.add(drawn[:BLOCK_TOKENS])
        yield Prompt(drawn, output_tokens)


def cycle(prompts: Sequence[Prompt], seed: int) -> Iterator[Prompt]:
    """Yields the prompts in order, then all of them again and again, shuffled in each round.

    Repeated prompts hit the prefix cache, and the figures of such a run include that.
    """
    left, random = list(prompts), Random(f"{seed} rounds")  # noqa: S311 (no secret)
    while left:
        yield from left
        random.shuffle(left)


def from_file(path: Path, default_output_tokens: int | None, seed: int) -> tuple[Prompt, ...]:
    """Reads the prompts of a file and shuffles them by the seed: a file may be sorted.

    `default_output_tokens`: for entries without a number, at least 1. Raises OSError, and
    ValueError with file, line, value and rule for an invalid entry or a file without prompts.
    """
    prompts = list(parse(str(path), path.read_bytes(), default_output_tokens))
    if not prompts:
        raise ValueError(f"{path}: the file must contain at least one prompt")
    Random(f"{seed} file").shuffle(prompts)  # noqa: S311 (no secret)
    return tuple(prompts)


def parse(name: str, content: bytes, default_output_tokens: int | None) -> Iterator[Prompt]:
    """Yields the prompts of a file in its order; `name` is for errors.

    Raises ValueError as `from_file` does.
    """
    documents = list(documents_in(name, content)) if content.strip() else []
    is_list = len(documents) == 1 and isinstance(documents[0][1], list)
    entries = enumerate(documents[0][1], 1) if is_list else iter(documents)
    for number, document in entries:
        with named(f"{name}: entry {number}: " if is_list else f"{name}:{number}: "):
            entry = convert(document, Prompt)
            output_tokens = entry.output_tokens or default_output_tokens
            if output_tokens is None:
                rule = "add them to the entry, or give --output-tokens"
                raise ValueError(f"has no output_tokens: {rule}")
        text = entry.prompt
        if not isinstance(entry.conversations, UnsetType):
            turns = (turn.value for turn in entry.conversations if turn.sender in _HUMAN)
            text = next((turn for turn in turns if turn.strip()), "")
        if text != "":
            yield Prompt(text, output_tokens, entry.messages)
