"""Derives the workloads of an engine from its routes: vLLM adds the routes of its tasks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_WORKLOADS: Final = {
    "/v1/completions": "completion",
    "/v1/chat/completions": "chat",
    "/v1/responses": "responses",
    "/v1/messages": "messages",
    "/v1/embeddings": "embedding",
    "/pooling": "pooling",
    "/classify": "classification",
    "/score": "score",
    "/rerank": "rerank",
    "/v1/audio/transcriptions": "transcription",
    "/v1/audio/translations": "translation",
    "/v1/realtime": "realtime",
}
# Those that read recordings.
RECORDINGS: Final = frozenset({"transcription", "translation"})


def workloads_of(paths: Iterable[str]) -> tuple[str, ...]:
    """Returns the workloads for these paths, always in the same order."""
    served = set(paths)
    return tuple(workload for path, workload in _WORKLOADS.items() if path in served)
