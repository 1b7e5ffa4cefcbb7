"""Digests of weights and plugin: what changes them, and what is said where there are none."""

from __future__ import annotations

import logging
import struct
from pathlib import Path

import pytest

from vllm_plugin.evidence import digests as module
from vllm_plugin.evidence.digests import Digests


def weights(folder: Path, header: bytes = b'{"a":1}', tensors: bytes = b"0123") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    content = struct.pack("<Q", len(header)) + header + tensors
    (folder / "model.safetensors").write_bytes(content)
    (folder / "config.json").write_text('{"hidden_size": 8}')
    return folder


def digest(folder: Path) -> str:
    digests = Digests(str(folder), None)
    digests.compute()
    found = digests.document()["weights"]
    assert found["missing"] is None
    value: str = found["sha256"]
    assert len(value) == 64
    return value


def test_digest_covers_names_sizes_headers_and_configuration_but_no_values(tmp_path: Path) -> None:
    folder = weights(tmp_path / "a")
    first = digest(folder)
    assert digest(weights(tmp_path / "b")) == first, "wherever the folder is"
    assert digest(weights(folder, tensors=b"4567")) == first
    others = {
        "header": digest(weights(tmp_path / "c", header=b'{"a":2}')),
        "size": digest(weights(tmp_path / "d", tensors=b"01234")),
    }
    (folder / "config.json").write_text('{"hidden_size": 9}')
    others["configuration"] = digest(folder)
    weights(folder)
    (folder / "model.safetensors").rename(folder / "other.safetensors")
    others["name"] = digest(folder)
    assert len({first, *others.values()}) == 5


def test_method_says_that_values_are_not_covered(tmp_path: Path) -> None:
    assert "not covered" in Digests(str(tmp_path), None).document()["weights"]["method"]


@pytest.mark.parametrize("content", [None, b"\xff" * 8, b""])
def test_model_without_a_digest_says_why_and_keeps_the_others(
    tmp_path: Path, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    if content is not None:
        (tmp_path / "model.safetensors").write_bytes(content)
    if content == b"":
        (tmp_path / "model.safetensors").rename(tmp_path / "model.bin")
    digests = Digests(str(tmp_path), None)
    assert digests.document()["weights"]["missing"] == "not computed yet"
    with caplog.at_level(logging.WARNING):
        digests.start().join(10)
    found = digests.document()
    assert (found["weights"]["sha256"], found["plugin"]["missing"]) == (None, None)
    assert found["weights"]["missing"] == "not computed: ValueError"
    assert "no digest for evidence" in caplog.text


def test_model_that_is_not_on_this_machine_has_no_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    digests = Digests("nobody/never-downloaded", None)
    digests.compute()
    assert digests.document()["weights"]["sha256"] is None


def test_weights_are_those_of_vllms_download_directory(tmp_path: Path) -> None:
    entry = tmp_path / "models--org--tiny"
    commit = "0" * 40
    (entry / "refs").mkdir(parents=True)
    (entry / "refs" / "main").write_text(commit)
    folder = weights(entry / "snapshots" / commit)
    digests = Digests("org/tiny", None, str(tmp_path))
    digests.compute()
    assert digests.document()["weights"]["sha256"] == digest(folder)


def test_digest_of_the_plugin_covers_names_and_contents_of_all_its_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    top, inside = tmp_path / "plugin" / "register.py", tmp_path / "plugin" / "evidence"
    inside.mkdir(parents=True)
    monkeypatch.setattr(module, "__file__", str(inside / "digests.py"))

    def digest_of_plugin() -> str:
        digests = Digests(str(tmp_path), None)
        digests.compute()
        return str(digests.document()["plugin"]["sha256"])

    top.write_text("a = 1")
    (inside / "digests.py").write_text("b = 1")
    found = [digest_of_plugin()]
    top.write_text("a = 2")
    found.append(digest_of_plugin())
    (inside / "digests.py").write_text("b = 2")
    found.append(digest_of_plugin())
    (tmp_path / "plugin" / "state").mkdir()
    (inside / "digests.py").rename(tmp_path / "plugin" / "state" / "digests.py")
    found.append(digest_of_plugin())
    assert len(set(found)) == 4
    (tmp_path / "plugin" / "notes.txt").write_text("no code")
    assert digest_of_plugin() == found[-1]
