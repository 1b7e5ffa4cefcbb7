"""The documentation: links work, and the reference is complete against the code."""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config

from orch_sidecar import cli
from orch_sidecar.api.endpoints import ENDPOINTS
from orch_sidecar.config.settings import SidecarSettings
from orch_sidecar.control import capabilities
from orch_sidecar.control.endpoints import ADMIN, PUBLIC
from orch_sidecar.engine_state.document import Fields
from orch_sidecar.pools.status import absent
from orch_sidecar.tools.facts.tables.notes import FORMS as NOTE_FORMS
from tests.documents import (
    ROOT,
    anchors,
    cells,
    documents,
    links,
    page,
    quoted,
    rows,
    section,
    sentences,
    text_of,
    words,
)
from tests.import_graph import CONTRIBUTING, drawn
from tests.reference_pages import PAGES, PLACE, TABLES, written
from vllm_plugin.contracts.profile import load
from vllm_plugin.evidence.epoch_key import KEY_VARIABLE
from vllm_plugin.register import WARM_UP_VARIABLE
from vllm_plugin.state.engine_facts import Conditions

every_document = pytest.mark.parametrize(
    "path", documents(), ids=lambda path: str(path.relative_to(ROOT))
)


@every_document
def test_every_relative_link_and_anchor_exists(path: Path) -> None:
    broken = []
    for link in links(path):
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


@every_document
def test_every_make_target_exists(path: Path) -> None:
    targets = re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    named = re.findall(r"(?:^|`)make ([a-z0-9-]+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(named) <= set(targets)


@every_document
def test_every_module_that_a_command_runs_exists(path: Path) -> None:
    named = re.findall(r"python -m (tests[.\w]+)", path.read_text(encoding="utf-8"))
    files = (ROOT.joinpath(*module.split(".")) for module in named)
    assert [file for file in files if not (file.with_suffix(".py").exists() or file.is_dir())] == []


@pytest.mark.parametrize("path", sorted((ROOT / "docs").rglob("*.md")), ids=lambda path: path.stem)
def test_no_sentence_and_no_cell_of_a_page_is_too_long(path: Path) -> None:
    assert [text for text in sentences(path) if words(text) > 40] == []
    assert [text for text in cells(path) if words(text) > 60] == []


def commands() -> list[list[str]]:
    """The words of every `orch` command in the documentation; what follows a `>` is the shell's."""
    found = (
        command
        for path in documents()
        for command in re.findall(
            r"(?:^|`)(orch [a-z][^`#|>\n]*)", path.read_text(encoding="utf-8"), re.MULTILINE
        )
    )
    return [command.split()[1:] for command in sorted(set(found))]


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_every_documented_command_and_option_exists(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    ours = words[: words.index("--")] if "--" in words else words  # the rest is vLLM's
    options = {word.partition("=")[0] for word in ours if word.startswith("--")}
    if words[0] == "engine":
        options &= {"--profile"}  # all others are vLLM's
    subcommand = words[:2] if words[0] in ("bench", "facts") else words[:1]
    with pytest.raises(SystemExit) as ended:
        cli.main([*subcommand, "--help"])
    assert ended.value.code == 0
    help_text = capsys.readouterr().out
    assert [name for name in options if not re.search(rf"{name}(?![\w-])", help_text)] == []


def test_contributing_describes_every_drawn_package_in_its_order() -> None:
    boxes = [line.split()[0] for line in drawn()]
    tops = dict.fromkeys("tools" if name.startswith("tools.") else name for name in boxes)
    packages = [quoted(name)[0] for name, *_ in rows(section(CONTRIBUTING, "Packages"))]
    assert packages == list(tops)


def test_every_path_in_contributing_exists() -> None:
    paths = {name for name in quoted(text_of(CONTRIBUTING)) if re.fullmatch(r"\w[^ ]*/[^ ]*", name)}
    assert [path for path in sorted(paths) if not list(ROOT.glob(path.rstrip("/")))] == []


def test_readme_has_at_most_200_lines() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 200


def test_every_page_is_reached_from_the_readme() -> None:
    known, reached = set(documents()), {ROOT / "README.md"}
    new = set(reached)
    while new:
        found = {
            (path.parent / link.partition("#")[0]).resolve() for path in new for link in links(path)
        }
        new = found & known - reached
        reached |= new
    assert known == reached


def test_every_table_of_the_code_is_on_one_page() -> None:
    pages = (path.read_text(encoding="utf-8") for path in PAGES)
    assert sorted(place[2] for each in pages for place in PLACE.finditer(each)) == sorted(TABLES)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_generated_tables_are_those_of_the_code(path: Path) -> None:
    found = path.read_text(encoding="utf-8")
    assert found == written(found), "python -m tests.reference_pages"


def test_every_endpoint_is_documented_with_its_method() -> None:
    documented = set()
    for _, named in rows(page("endpoints")):
        method = ""
        for name in quoted(named):
            method, _, path = name.rpartition(" ") if " " in name else (method, "", name)
            documented.add((method, path))
    paths = {(route.method, route.path) for route in ENDPOINTS.values()}
    for listener in (PUBLIC, ADMIN):
        paths |= {(method, each.value) for each, methods in listener.items() for method in methods}
    assert documented == paths


def test_every_field_of_capabilities_is_documented() -> None:
    named = {name for first, *_ in rows(page("capabilities")) for name in quoted(first)}
    documented = {name.partition(".")[0] for name in named}
    assert set(Fields.__struct_fields__) - capabilities.OMITTED_FIELDS <= documented
    head = capabilities.head(
        state="", states={}, sidecar_version="", sidecar_build="", generation=1
    )
    assert {*head, *capabilities.entry(absent("cloud", load("cloud")), None)} <= documented


def test_every_condition_of_an_engine_is_documented() -> None:
    assert {each.name for each in fields(Conditions)} <= set(quoted(page("capabilities")))


def test_every_note_with_a_form_is_documented() -> None:
    """Of percentiles, which are many, the page has examples."""
    documented = {name.partition("=")[0] for name in quoted(page("facts"))}
    percentiles = {name for name in NOTE_FORMS if re.search(r"_p[0-9]+_", name)}
    assert NOTE_FORMS.keys() - percentiles <= documented
    assert percentiles & documented


def constants(*packages: str) -> set[str]:
    """Every text in the code of the packages, but for docstrings' parts and loggers' names."""
    found: set[str] = set()
    for package in packages:
        for path in (ROOT / package).rglob("*.py"):
            if "tools" in path.relative_to(ROOT).parts:
                continue
            tree = ast.parse(path.read_text(encoding="utf-8"))
            loggers = {
                id(argument)
                for node in ast.walk(tree)
                if isinstance(node, ast.Call) and ast.unparse(node.func) == "logging.getLogger"
                for argument in node.args
            }
            for node in ast.walk(tree):
                if isinstance(node, ast.Constant) and id(node) not in loggers:
                    if isinstance(node.value, bytes):
                        found.add(node.value.decode("latin-1"))
                    elif isinstance(node.value, str):
                        found.add(node.value)
    return found


def test_every_header_of_the_sidecar_is_documented_and_no_other() -> None:
    interface = "".join(page(name) for name in ("endpoints", "headers", "refusals", "watching"))
    documented = {name.lower() for name in re.findall(r"\b[Xx]-[A-Za-z-]*[A-Za-z]", interface)}
    known = {text.lower() for text in constants("orch_sidecar", "vllm_plugin")}
    ours = {text for text in known if re.fullmatch(r"x-orch-[a-z-]*[a-z]", text)}
    assert ours <= documented
    assert documented <= known


def test_every_span_attribute_is_documented_and_no_other() -> None:
    documented = {
        name
        for first, *_ in rows(page("traces"))
        for name in quoted(first)
        if name.startswith("orch.")
    }
    written = {
        text
        for text in constants("orch_sidecar", "vllm_plugin")
        if re.fullmatch(r"orch\.[a-z_.]*[a-z_]", text)
    } | {f"orch.{each.name}" for each in fields(Conditions)}
    assert documented == written


def test_documentation_names_no_variable_that_does_not_exist() -> None:
    known = {f"ORCH_{name.upper()}" for name in SidecarSettings.model_fields}
    known |= {"ORCH_CONFIG", KEY_VARIABLE, WARM_UP_VARIABLE}
    for path in documents():
        assert set(re.findall(r"ORCH_[A-Z_]+", text_of(path))) <= known, path


def test_the_site_builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_MKDOCS_2_WARNING", "1")
    config = load_config(str(ROOT / "mkdocs.yml"), strict=True, site_dir=str(tmp_path))
    build(config)
    assert (tmp_path / "index.html").exists()
