"""Has vLLM run the clips of a recording one after the other, so that a recording takes one slot.

vLLM cuts a recording into clips, 30 s each for most models. How many is known only once the audio
is decoded, long after the sidecar has admitted the request. The clips of a streamed answer run one
after the other already, those of any other all at once.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import TypeVar

T = TypeVar("T")


async def in_turn(*iterators: AsyncIterator[T]) -> AsyncGenerator[tuple[int, T], None]:
    """Yields what vLLM's `merge_async_iterators` does, from one iterator after the other. One of
    vLLM's gives its request to the engine when it is first asked."""
    for number, iterator in enumerate(iterators):
        async for each in iterator:
            yield number, each


def run_clips_in_turn() -> None:
    """Changes it for all recordings of this process."""
    import vllm.entrypoints.speech_to_text.base.serving as serving

    serving.merge_async_iterators = in_turn
