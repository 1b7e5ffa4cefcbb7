"""The hooks exist in the GPU builds of vLLM, which cannot run here: read from their records."""

from __future__ import annotations

import io
from zipfile import ZIP_DEFLATED, ZipFile

import pytest

from tests.vllm_plugin.gpu_builds import record
from tests.vllm_plugin.gpu_builds.ranges import open_ranges
from vllm_plugin import hooks
from vllm_plugin.symbols import parse_symbols

RELEASES = ("0.32.0", "0.33.0")


@pytest.mark.parametrize("version", RELEASES)
def test_every_hook_exists_in_the_gpu_build(version: str) -> None:
    """The same check as the plugin's own at the start of an engine."""
    text, complete = hooks.report(version, hooks.check(record.read(version).symbols_of))
    assert complete, text


@pytest.mark.parametrize("version", RELEASES)
def test_record_answers_for_every_hook(version: str) -> None:
    """A hook added since the record was written is not taken for one that vLLM lacks."""
    found = record.read(version)
    assert found.version == version
    assert found.unrecorded() == [], (
        f"run fetch: python -m tests.vllm_plugin.gpu_builds.fetch {' '.join(RELEASES)}"
    )


@pytest.mark.parametrize("hook", hooks.HOOKS, ids=lambda hook: f"{hook.file}:{hook.what}")
def test_name_that_vllm_drops_is_missed(hook: hooks.Hook) -> None:
    """Dropping any one name from a complete record is found, and nothing else is."""
    complete = record.read(RELEASES[-1])
    for name in hook.names:
        files = complete.model_copy(deep=True).files
        names = files[hook.file][hook.what]
        assert names is not None
        names.remove(name)
        mutated = complete.model_copy(update={"files": files})
        missing = [f for f in hooks.check(mutated.symbols_of) if f.missing]
        assert missing == [hooks.Finding(hook, (name,))]


@pytest.mark.parametrize("hook", hooks.HOOKS, ids=lambda hook: f"{hook.file}:{hook.what}")
def test_place_that_vllm_drops_misses_all_its_names(hook: hooks.Hook) -> None:
    """A class or function that is gone (recorded as such) is not one that was never looked at."""
    complete = record.read(RELEASES[-1])
    files = complete.model_copy(deep=True).files
    files[hook.file][hook.what] = None
    mutated = complete.model_copy(update={"files": files})
    missing = [f for f in hooks.check(mutated.symbols_of) if f.missing]
    assert missing == [hooks.Finding(hook, hook.names)]
    assert mutated.unrecorded() == []


def test_unrecorded_place_is_named() -> None:
    """What was never looked at is told apart from what is gone."""
    complete = record.read(RELEASES[-1])
    hook = hooks.HOOKS[-1]
    files = complete.model_copy(deep=True).files
    del files[hook.file]
    mutated = complete.model_copy(update={"files": files})
    assert mutated.unrecorded() == [f"{hook.file}:{hook.what}"]


def test_look_records_names_and_marks_what_is_not_there() -> None:
    """Names come out sorted and once each, from sources of which only one file exists."""
    source = "class SpanAttributes:\n    B = 'b'\n    A: str = 'a'\n    B = 'c'\n"
    files = record.look(lambda f: parse_symbols(source) if f == "tracing/utils.py" else None)
    assert files.pop("tracing/utils.py") == {
        "SpanAttributes": ["A", "A='a'", "B", "B='b'", "B='c'"]
    }
    assert all(names is None for places in files.values() for names in places.values())


def test_member_is_read_from_a_wheel_without_reading_the_rest() -> None:
    """Of a zip, no more than its directory and the wanted member's surroundings are asked for."""
    memory = io.BytesIO()
    with ZipFile(memory, "w") as archive:
        archive.writestr("vllm/weights", bytes(4_000_000))
        archive.writestr("vllm/names.py", "A = 1\n", ZIP_DEFLATED)
        archive.writestr("vllm/kernels", bytes(4_000_000))
    wheel = memory.getvalue()
    asked: list[int] = []

    def read_range(start: int, stop: int) -> bytes:
        asked.append(stop - start)
        return wheel[start:stop]

    with open_ranges(len(wheel), read_range) as file, ZipFile(file) as archive:
        assert archive.read("vllm/names.py") == b"A = 1\n"
    assert sum(asked) < 1_000_000
