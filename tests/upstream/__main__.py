"""`python -m tests.upstream`: what of vLLM's entry-point tests passes directly and not through us.

Takes about 20 minutes of two cores. Models are replaced by generated ones, so tests of what a
model says fail in both ways, and so does what needs a GPU, a hub or a package that is missing:
only those that pass directly count.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, Final

from orch_sidecar.tools.local.up import tiny_model
from tests.engine.adapter import write_adapter

HARNESS: Final = Path(__file__).parent / "harness"
_HARNESS: Final = {
    "__init__.py": "tests/__init__.py",
    "utils.py": "tests/utils.py",
    "shared.py": "tests/conftest.py",
    "run.py": "run.py",
}
_EMBEDS: Final = "--runner pooling --convert embed"
_CLASSIFIES: Final = "--runner pooling"

# The modules, and the arguments of vLLM that make the tiny model one of their kind.
GENERATES: Final = (
    "openai/completion/test_completion.py",
    "openai/completion/test_prompt_validation.py",
    "openai/completion/test_token_in_token_out.py",
    "openai/test_chunked_prompt.py",
    "openai/test_return_token_ids.py",
    "openai/test_return_tokens_as_ids.py",
    "openai/chat_completion/test_chat.py",
    "openai/chat_completion/test_chat_completion.py",
    "openai/chat_completion/test_batched_chat_completions.py",
    "openai/chat_completion/test_chat_echo.py",
    "openai/chat_completion/test_chat_logit_bias_validation.py",
    "openai/chat_completion/test_extra_content_fields.py",
    "openai/chat_completion/test_logprob_token_ids.py",
    "openai/chat_completion/test_enable_force_include_usage.py",
    "openai/responses/test_simple.py",
    "openai/models/test_models.py",
    "anthropic/test_messages.py",
    "cohere/test_chat_v2.py",
    "serve/tokenize/test_tokenization.py",
    "serve/instrumentator/test_basic.py",
    "generate/generative_scoring/test_generative_scoring_e2e.py",
)
POOLS: Final = (
    "pooling/embed/test_online.py",
    "pooling/embed/test_online_dimensions.py",
    "pooling/embed/test_cohere_online.py",
    "pooling/scoring/test_bi_encoder_online.py",
)
READS_PAIRS: Final = (
    "pooling/scoring/test_cross_encoder_online.py",
    "pooling/classify/test_online.py",
)
# What the tests import beside `tests.utils`.
_HELPERS: Final = (
    "tests/ci_envs.py",
    "tests/models/utils.py",
    "tests/models/registry.py",
    "tests/models/language/pooling/embed_utils.py",
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.upstream", description=__doc__)
    parser.add_argument("--only", default="", help="modules whose path has this text in it")
    parser.add_argument(
        "--sdist", type=Path, required=True, help="vLLM's source distribution, from PyPI"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        _unpack(options.sdist, root / "work")
        models = {"": tiny_model(), "pairs": _cross_encoder(root / "pairs")}
        os.environ["ORCH_UPSTREAM_ADAPTER"] = str(write_adapter(root / "adapter", tiny_model()))
        lost = 0
        print("| module | pass directly | of these through the sidecar |\n|---|---|---|")
        for modules, arguments, model in (
            (GENERATES, "", models[""]),
            (POOLS, _EMBEDS, models[""]),
            (READS_PAIRS, _CLASSIFIES, models["pairs"]),
        ):
            for module in modules:
                if options.only in module:
                    lost += _compare(root / "work", module, arguments, model)
    return 1 if lost else 0


def _unpack(archive: Path, target: Path) -> None:
    """Takes the tests of the entry points out of the archive, and puts the harness beside them."""
    tests = target / "tests"
    with tarfile.open(archive) as opened:
        for member in opened:
            member.name = path = member.name.partition("/")[2]
            test = path.startswith("tests/entrypoints/") and path.endswith(".py")
            if member.isfile() and (test or path in _HELPERS):
                opened.extract(member, target, filter="data")
    for file, name in _HARNESS.items():
        shutil.copy(HARNESS / file, target / name)
    for module in _HELPERS:
        for parent in (target / module).parents:
            if parent == tests:
                break
            (parent / "__init__.py").touch()


def _cross_encoder(directory: Path) -> Path:
    command = ["-m", "tests.engine.cross_encoder_model", str(directory), str(tiny_model())]
    subprocess.run([sys.executable, *command], check=True, capture_output=True)
    return directory


def _compare(folder: Path, module: str, arguments: str, model: Path) -> int:
    """Runs a module, prints its row; returns how many tests pass directly only."""
    result = folder / "result.json"
    result.unlink(missing_ok=True)
    command = [sys.executable, "run.py", f"tests/entrypoints/{module}", str(result)]
    environ = os.environ | {
        "ORCH_UPSTREAM_MODEL": str(model), "ORCH_UPSTREAM_ARGUMENTS": arguments,
        "PYTHONPATH": str(folder), "HF_HUB_OFFLINE": "1",
    }  # fmt: skip
    done = subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, check=False
    )
    if not result.exists():
        print(f"| `{module}` | not run: {(done.stderr or done.stdout)[-300:]!r} | |", flush=True)
        return 0
    found: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    passed = {test for test, outcome in found["directly"]["of"].items() if outcome == "passed"}
    through = found["sidecar"]["of"]
    lost = sorted(test for test in passed if through.get(test) != "passed")
    others = Counter(found["directly"]["of"].values())
    others.pop("passed", None)
    note = ", ".join(f"{count} {outcome}" for outcome, count in sorted(others.items()))
    row = f"| `{module}` | {len(passed)}" + (f" ({note})" if note else "")
    print(f"{row} | {len(passed) - len(lost)} |", flush=True)
    for test in lost:
        why = found["sidecar"]["why"].get(test, through.get(test))
        print(f"  - {test.rpartition('::')[2]}: {why}", flush=True)
    whys = Counter(" ".join(why.split())[:160] for why in found["directly"]["why"].values())
    for why, count in whys.most_common(3):
        print(f"  - directly, {count} times: {why}", flush=True)
    return len(lost)


if __name__ == "__main__":
    sys.exit(main())
