"""Computes digests of what an engine runs: its weights and this plugin, in a thread of their own.

Weights have many GB. Their digest is of the names, sizes and headers of the safetensors files, and
of the index and the configuration: it tells models, versions and quantisations apart, but does not
cover the tensors' values. What cannot be computed is null, with the reason.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

WEIGHTS_METHOD: Final = (
    "sha256 of the names, sizes and headers of *.safetensors, and of *.index.json and config.json, "
    "as the folder is after the start; the values of tensors are not covered"
)
PLUGIN_METHOD: Final = "sha256 of the names and contents of the installed *.py of vllm_plugin"

_NOT_YET: Final = "not computed yet"
_LENGTH_BYTES: Final = 8  # of a header, at the begin of a safetensors file
_MAX_HEADER_BYTES: Final = 100_000_000  # as in the safetensors library

logger = logging.getLogger("vllm.orch")


class Digests:
    """The digests, as far as they are known."""

    def __init__(
        self, model: str, revision: str | None = None, download_dir: str | None = None
    ) -> None:
        """`download_dir`: where vLLM keeps models of the hub; None for the hub's own cache."""
        self._model = model
        self._revision = revision
        self._download_dir = download_dir
        self._found: dict[str, Any] = {
            "weights": _digest(WEIGHTS_METHOD, None, _NOT_YET),
            "plugin": _digest(PLUGIN_METHOD, None, _NOT_YET),
        }

    def start(self) -> threading.Thread:
        """Computes them in a thread that ends with the process."""
        thread = threading.Thread(target=self.compute, name="orch-digests", daemon=True)
        thread.start()
        return thread

    def compute(self) -> None:
        """Computes them now."""
        self._found["plugin"] = _attempt(
            PLUGIN_METHOD, lambda: digest_of(_sources(Path(__file__).parents[1]))
        )
        self._found["weights"] = _attempt(
            WEIGHTS_METHOD,
            lambda: digest_of(
                _weights(folder_of(self._model, self._revision, self._download_dir)),
            ),
        )

    def document(self) -> dict[str, Any]:
        return dict(self._found)


def folder_of(model: str, revision: str | None, download_dir: str | None) -> Path:
    """Returns the folder of a model: a path, or an entry of a Hugging Face cache.

    Raises OSError or ValueError where there is none.
    """
    if (path := Path(model)).is_dir():
        return path
    from huggingface_hub import snapshot_download

    found = snapshot_download(
        model, revision=revision, cache_dir=download_dir, local_files_only=True
    )
    return Path(found)


def digest_of(parts: Iterator[bytes]) -> str:
    """Returns the SHA-256 of parts, each with its length. Raises what the parts raise."""
    whole = hashlib.sha256()
    for part in parts:
        whole.update(b"%d:" % len(part))
        whole.update(part)
    return whole.hexdigest()


def _weights(folder: Path) -> Iterator[bytes]:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ValueError("the model has no safetensors files")
    for path in files:
        yield path.name.encode()
        yield b"%d" % path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            if length > _MAX_HEADER_BYTES:
                raise ValueError(f"{path.name} is not a safetensors file")
            yield file.read(length)
    for path in sorted([*folder.glob("*.index.json"), *folder.glob("config.json")]):
        yield path.name.encode()
        yield path.read_bytes()


def _sources(folder: Path) -> Iterator[bytes]:
    for path in sorted(folder.rglob("*.py")):
        yield path.relative_to(folder).as_posix().encode()
        yield path.read_bytes()


def _attempt(method: str, compute: Any) -> dict[str, Any]:
    try:
        return _digest(method, compute(), None)
    except Exception as error:  # also of the hub's library; reported as missing
        logger.warning("orch: no digest for evidence (%s)", method, exc_info=True)
        return _digest(method, None, f"not computed: {type(error).__name__}")


def _digest(method: str, value: str | None, why: str | None) -> dict[str, Any]:
    return {"method": method, "sha256": value, "missing": why}
