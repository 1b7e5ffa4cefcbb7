"""The blocks of a KV cache that sequences take, and its entry in the engine's state."""

from __future__ import annotations

import pytest

from vllm_plugin.contracts.kv_cache import KvCache, KvGroup

WINDOW = KvGroup(16, 4, 12, count=5)


@pytest.mark.parametrize(("tokens", "swing"), [(48, 0), (49, 5), (1000, 5)])
def test_window_that_is_full_frees_a_block_of_each_group_and_takes_another(
    tokens: int, swing: int
) -> None:
    assert KvCache(100, (KvGroup(16), WINDOW)).swing(tokens) == swing


def test_state_of_one_block_is_never_freed_for_another() -> None:
    assert KvCache(100, (KvGroup(16, 1),)).swing(1000) == 0


def test_group_is_read_as_it_was_reported_whatever_else_its_entry_has() -> None:
    groups = KvGroup(16), WINDOW, KvGroup(2048, 1, blocks_extra=3)
    entries = KvCache(100, groups).document(100)["kv_groups"]
    assert tuple(KvGroup.of(each | {"new": 1}) for each in entries) == groups
