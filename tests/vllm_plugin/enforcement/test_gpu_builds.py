"""The hooks exist in the GPU builds of vLLM, by records of their symbols: they cannot run here."""

from __future__ import annotations

import io
from zipfile import ZIP_DEFLATED, ZipFile

import pytest

from tests.vllm_plugin.enforcement.gpu_builds import record
from tests.vllm_plugin.enforcement.gpu_builds.ranges import open_ranges
from vllm_plugin.enforcement import hooks
from vllm_plugin.enforcement.hooks import parse_symbols
from vllm_plugin.enforcement.vllm_names import HOOKS

RELEASES = ("0.32.0", "0.33.0")


@pytest.mark.parametrize("version", RELEASES)
def test_every_hook_exists_in_the_gpu_build(version: str) -> None:
    """The check is the one that the plugin runs at the start of an engine."""
    text, complete = hooks.report(version, hooks.check(record.read(version).symbols_of))
    assert complete, text


@pytest.mark.parametrize("version", RELEASES)
def test_record_answers_for_every_hook(version: str) -> None:
    """Otherwise a hook that is newer than the record would look like one that vLLM lacks."""
    found = record.read(version)
    assert found.version == version
    assert found.unrecorded() == [], (
        f"run: python -m tests.vllm_plugin.enforcement.gpu_builds.fetch {' '.join(RELEASES)}"
    )


def test_class_or_function_that_vllm_drops_misses_all_names() -> None:
    """It is recorded as absent, which differs from not recorded."""
    complete = record.read(RELEASES[-1])
    hook = HOOKS[-1]
    files = complete.model_copy(deep=True).files
    files[hook.file][hook.what] = None
    mutated = complete.model_copy(update={"files": files})
    missing = [f for f in hooks.check(mutated.symbols_of) if f.missing]
    assert missing == [hooks.Finding(hook, hook.names)]
    assert mutated.unrecorded() == []
    del files[hook.file]
    unrecorded = complete.model_copy(update={"files": files}).unrecorded()
    assert unrecorded == [f"{hook.file}:{hook.what}"]


def test_record_contains_sorted_names_and_marks_absent_places() -> None:
    """Only one of the files exists here."""
    source = "class SpanAttributes:\n    B = 'b'\n    A: str = 'a'\n    B = 'c'\n"
    files = record.collect(lambda f: parse_symbols(source) if f == "tracing/utils.py" else None)
    assert files.pop("tracing/utils.py") == {
        "SpanAttributes": ["A", "A='a'", "B", "B='b'", "B='c'"]
    }
    assert all(names is None for places in files.values() for names in places.values())


def test_member_is_read_from_a_wheel_without_reading_the_rest() -> None:
    """Only the directory of the zip file and the surroundings of the member are requested."""
    memory = io.BytesIO()
    with ZipFile(memory, "w") as archive:
        archive.writestr("vllm/weights", bytes(4_000_000))
        archive.writestr("vllm/names.py", "A = 1\n", ZIP_DEFLATED)
        archive.writestr("vllm/kernels", bytes(4_000_000))
    wheel = memory.getvalue()
    requested: list[int] = []

    def read_range(start: int, stop: int) -> bytes:
        requested.append(stop - start)
        return wheel[start:stop]

    with open_ranges(len(wheel), read_range) as file, ZipFile(file) as archive:
        assert archive.read("vllm/names.py") == b"A = 1\n"
    assert sum(requested) < 1_000_000
