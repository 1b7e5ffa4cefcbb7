"""What is asked: prompts, those made up of random tokens, and the body of a request.

Pure: tokenizing is the endpoint's business, and comes as a function. An answer has a length that
is known before: with `ignore_eos` an engine generates as much as it was asked for, so that two
runs have the same work. That is vLLM's word (`min_tokens`, too), no part of OpenAI's API.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final, TypeAlias

# Token ids, a text, or the messages of a chat.
Content: TypeAlias = tuple[int, ...] | str | tuple[Mapping[str, Any], ...]

# vLLM's prefix cache knows whole blocks of a prompt, by default of 16 tokens or more.
BLOCK_TOKENS: Final = 16

# Of 16 ids there are 16^16 first blocks: no run uses them up.
LEAST_IDS: Final = 16

# At temperature 0 it decides nothing in vLLM; an engine that still samples repeats itself by it.
SEED: Final = 0


class UsedUp(ValueError):
    """There are no more prompts that differ; the message says how many there were."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """What one request asks.

    `input_tokens`: exact, or None where only the engine can count them. `output_tokens`: asked
    for, at least 1.
    """

    content: Content
    input_tokens: int | None
    output_tokens: int

    @property
    def is_chat(self) -> bool:
        return not isinstance(self.content, str) and isinstance(self.content[0], Mapping)

    @property
    def path(self) -> str:
        """Of the endpoint that takes it, below the base URL of a server."""
        return "/v1/chat/completions" if self.is_chat else "/v1/completions"


def body(prompt: Prompt, model: str, *, ignore_eos: bool, stream: bool = True) -> bytes:
    """The JSON that asks a model for this, for `prompt.path`.

    Greedy, so that runs repeat; a model's own defaults would sample. A stream ends with its
    usage. `ignore_eos`: exactly `output_tokens` come. `min_tokens` is for models that have
    further stop tokens, which `ignore_eos` says nothing of.
    """
    document: dict[str, Any] = {
        "model": model,
        "messages" if prompt.is_chat else "prompt": prompt.content,
        "max_tokens": prompt.output_tokens,
        "temperature": 0.0,
        "seed": SEED,
        "stream": stream,
    }
    if stream:  # without a stream vLLM refuses its options
        document["stream_options"] = {"include_usage": True}
    if ignore_eos:
        document["ignore_eos"] = True
        document["min_tokens"] = prompt.output_tokens
    return json.dumps(document, separators=(",", ":")).encode("ascii")


def synthetic(
    ids: Sequence[int], input_tokens: int, output_tokens: int, seed: int
) -> Iterator[Prompt]:
    """Prompts of exactly so many of these ids, at random, no two with the same first 16.

    So no prefix cache answers for one what it computed for another. The same seed gives the same
    prompts: a cache may know them from an earlier run. Of prompts shorter than 16 tokens no two
    are the same.

    Raises ValueError for no ids, a negative one, or a count below 1; and UsedUp, from the iterator,
    once prompts shorter than a block have all been used.
    """
    pool = sorted(set(ids))
    if not pool:
        raise ValueError("no token ids: prompts must be made of some")
    if pool[0] < 0:
        raise ValueError(f"token id {pool[0]}: must be at least 0")
    for name, tokens in (("input", input_tokens), ("output", output_tokens)):
        if tokens < 1:
            raise ValueError(f"{name} tokens {tokens}: must be at least 1")
    # With the length in it: the same draws would make a long prompt begin as a short one does.
    random = Random(f"{seed} prompts of {input_tokens}")  # noqa: S311 (no secret)
    return _different(pool, input_tokens, output_tokens, random)


def there_are(ids: Sequence[int], input_tokens: int) -> int:
    """How many prompts `synthetic` can make of these."""
    return int(len(set(ids)) ** min(input_tokens, BLOCK_TOKENS))


def _different(
    pool: Sequence[int], input_tokens: int, output_tokens: int, random: Random
) -> Iterator[Prompt]:
    block = min(input_tokens, BLOCK_TOKENS)
    count = there_are(pool, input_tokens)
    used: set[tuple[int, ...]] = set()
    while len(used) < count:
        drawn = tuple(random.choices(pool, k=input_tokens))
        if drawn[:block] not in used:
            used.add(drawn[:block])
            yield Prompt(drawn, input_tokens, output_tokens)
    raise UsedUp(
        f"{count} prompts of {input_tokens} tokens out of {len(pool)} ids are all that differ "
        f"in their first {block}, and must not be repeated"
    )


def cycle(prompts: Sequence[Prompt], seed: int) -> Iterator[Prompt]:
    """These in their order, then all of them again and again, each round in an order of its own.

    Repeated prompts are what a prefix cache is for: figures of such a run include it. Raises
    ValueError for none.
    """
    if not prompts:
        raise ValueError("no prompts: there is nothing to ask")
    return _rounds(list(prompts), Random(f"{seed} rounds"))  # noqa: S311 (no secret)


def _rounds(prompts: list[Prompt], random: Random) -> Iterator[Prompt]:
    while True:
        yield from prompts
        random.shuffle(prompts)


async def vocabulary(tokenize: Callable[[str], Awaitable[Sequence[int]]]) -> tuple[int, ...]:
    """Ids of ordinary tokens of the endpoint's model, ascending, for `synthetic`.

    `tokenize`: the ids of a text without special ones, as vLLM's POST /tokenize with
    `add_special_tokens: false` gives them. Raises ValueError for what are no ids, and for fewer
    than 16 different ones; and what `tokenize` raises.
    """
    tokens = await tokenize(ENGLISH)
    for token in tokens:
        if type(token) is not int or token < 0:
            raise ValueError(f"{token!r} among the tokens: must be an id, a number of at least 0")
    ids = tuple(sorted(set(tokens)))
    if len(ids) < LEAST_IDS:
        raise ValueError(
            f"{len(ids)} different token ids in a text of {len(ENGLISH.split())} words: must be "
            f"at least {LEAST_IDS} to make prompts of"
        )
    return ids


# Ordinary words of many kinds: few are repeated, so that a tokenizer has many ids for them.
ENGLISH: Final = """\
Early on a grey Thursday the ferry left its harbour with forty passengers, two horses and a piano
nobody had ordered. Rain fell softly over the islands while the captain, an old woman named Marta,
studied her charts and drank bitter coffee from a broken cup. She knew every rock along this coast,
each current, where seals slept and why certain lighthouses had gone dark. Below deck children
counted gulls through round windows; their parents argued about prices, weather, politics, the best
way of cooking fish. A young engineer wrote figures in her notebook: pressure, temperature, speed,
fuel. Something seemed wrong with the second pump, yet its noise was steady as a clock, so she
waited, listened, then tightened one bolt and smiled.

By noon clouds opened. Sunlight struck green hills, white houses, gardens full of apples and the
narrow bridge that joins both villages. Farmers brought cheese, wool, honey, fresh bread; merchants
offered silver rings, paper lamps, maps printed long before anyone measured these mountains
properly. At school a teacher explained how light travels, what planets weigh, who first crossed
the southern ocean and why numbers never end. Her students asked clever questions. Could machines
dream? Would rivers someday flow backwards? Does silence have a colour? She answered honestly when
she could and otherwise said, let us find out together.

Evening came quickly. Musicians gathered beneath the wooden roof beside the market, tuned violins,
drums, an accordion, and began slow dances which everybody remembered from winter festivals. The
piano stood among them at last, slightly damp, badly out of key, perfectly welcome. Later, under
bright stars, Marta walked home past sleeping dogs and closed doors, thinking of tomorrow: letters
to carry, ropes to mend, perhaps snow. Behind her someone laughed, a window shut, and only the
patient sea kept speaking.
"""
