"""Lines of input files are checked, and lines of output files are what was answered."""

from __future__ import annotations

import json

import pytest

from orch_sidecar.batches.rows import (
    MAX_MODEL_CHARACTERS,
    MAX_MODELS,
    InputCheck,
    InputRow,
    Problem,
    answered,
    body_of,
    serves,
)

URL = "/v1/chat/completions"


def line(custom_id: str = "a", **more: object) -> bytes:
    document = {"custom_id": custom_id, "method": "POST", "url": URL, "body": {"model": "m"}} | more
    return json.dumps(document).encode() + b"\n"


def test_rows_are_found_by_their_bytes_and_blank_lines_are_none() -> None:
    check = InputCheck(10, 1000)
    content = [line("a"), b"\r\n", line("b", body={"x": [1.50, "é"]})]
    found = [check.take(each) for each in content]
    rows = [each for each in found if isinstance(each, InputRow)]
    assert [row.custom_id for row in rows] == ["a", "b"]
    whole = b"".join(content)
    for row, each in zip(rows, (content[0], content[2]), strict=True):
        assert whole[row.begin : row.begin + row.length] == each
    assert check.end() is None


def test_byte_order_mark_is_no_part_of_the_first_row() -> None:
    check = InputCheck(10, 1000)
    row = check.take(b"\xef\xbb\xbf" + line("a"))
    assert isinstance(row, InputRow)
    assert (row.begin, row.length) == (3, len(line("a")))
    assert isinstance(check.take(b"\xef\xbb\xbf" + line("b")), Problem)


def test_models_of_the_rows_are_told_in_their_order_and_are_not_too_many() -> None:
    check = InputCheck(1000, 1000)
    for number, model in enumerate(["b", "a\0", "b", 7, "m" * 300]):
        check.take(line(f"{number}", body={"model": model}))
    assert list(check.models) == ["b", "a", "", "m" * MAX_MODEL_CHARACTERS]
    found = [check.take(line(f"x{each}", body={"model": f"{each}"})) for each in range(MAX_MODELS)]
    assert isinstance(found[MAX_MODELS - 5], InputRow)
    problem = found[MAX_MODELS - 4]
    assert isinstance(problem, Problem)
    assert problem.code == "too_many_models"


def test_body_is_sent_as_it_is_written() -> None:
    assert body_of(b'{"custom_id":"a","url":"/score","body":{"a": 1.50,  "a": 2}}') == (
        b'{"a": 1.50,  "a": 2}'
    )


@pytest.mark.parametrize(
    ("given", "code"),
    [
        (line(method="GET"), "invalid_method"),
        (line(url="/v1/audio/transcriptions"), "invalid_url"),
        (line(""), "invalid_custom_id"),
        (line("a" * 513), "invalid_custom_id"),
        (line("a\0"), "invalid_custom_id"),
        (line(body={"background": True}), "invalid_request"),
        (line(body=[]), "invalid_json_line"),
        (b'{"custom_id": "\xff"}', "invalid_json_line"),
        (b'{"body":' + b"[" * 5000 + b"\n", "invalid_json_line"),
        (line(body={"text": "x" * 9000}), "line_too_long"),
    ],
)
def test_line_that_cannot_run_is_named_with_its_number(given: bytes, code: str) -> None:
    check = InputCheck(10, 8000)
    check.take(line("first"))
    found = check.take(given)
    assert isinstance(found, Problem)
    assert (found.code, found.line) == (code, 2)


def test_rows_beyond_the_most_are_refused() -> None:
    check = InputCheck(1, 1000)
    check.take(line("a"))
    found = check.take(line("b"))
    assert isinstance(found, Problem)
    assert found.code == "too_many_rows"


def test_blank_lines_are_not_without_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orch_sidecar.batches.rows.MAX_LINES", 2)
    check = InputCheck(10, 1000)
    found = [check.take(b"\n") for _ in range(3)]
    assert found[:2] == [None, None]
    assert isinstance(found[2], Problem)
    assert (found[2].code, found[2].line) == ("too_many_lines", 3)


def test_only_endpoints_with_admission_and_json_are_served() -> None:
    assert all(map(serves, ("/v1/embeddings", "/v1/responses", "/score", "/v2/rerank")))
    assert not any(map(serves, ("/v1/models", "/v1/audio/translations", "/tokenize", "/x")))


@pytest.mark.parametrize(
    ("body", "written"),
    [
        (b'{"a": 1.50}', b'{"a": 1.50}'),  # as the engine wrote it
        (b'{"a": -1e999}', b'{"a": -1e999}'),
        (b'{"a": "\xff"}', '"{\\"a\\": \\"\ufffd\\"}"'.encode()),
        (b'{\n"a": [1]\n}', b'{"a":[1]}'),  # on one line
        (b"no\xffjson", '"no\ufffdjson"'.encode()),
    ],
)
def test_answer_is_in_its_line(body: bytes, written: bytes) -> None:
    found = answered("1f", "a\nb", 200, body)
    assert found.count(b"\n") == 1
    assert b'"body":' + written + b"}" in found
    document = json.loads(found)
    assert (document["id"], document["custom_id"]) == ("batch_req_1f", "a\nb")
    assert document["response"]["status_code"] == 200
