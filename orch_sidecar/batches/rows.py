"""Reads the lines of input files, and writes those of output files.

Pure. The format is OpenAI's, which `vllm run-batch` reads and writes, too: there each row names its
own endpoint, and so it may here.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

from orch_sidecar.api.endpoints import ENDPOINTS

MAX_ID_CHARACTERS: Final = 512
MAX_MODEL_CHARACTERS: Final = 256  # a longer name is none that an engine has
MAX_MODELS: Final = 8  # of one file; OpenAI takes one
# More than any key may have rows: of blank ones a file could have two hundred million.
MAX_LINES: Final = 10_000_000
_BLANK: Final = b" \t\r\n"
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


class InputRow(NamedTuple):
    """A row of an input file: its bytes are `length` from `begin` on. `model`: as far as its name
    can be stored, empty without one."""

    custom_id: str
    url: str
    model: str
    begin: int
    length: int


class Problem(NamedTuple):
    """What is wrong with an input file, as OpenAI has it in the `errors` of a batch. `line`: the
    first one is 1; None: the whole file."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class _Line(msgspec.Struct):
    custom_id: str
    url: str
    body: msgspec.Raw
    method: str = "POST"


class _Body(msgspec.Struct):
    model: Any = None
    stream: Any = None
    background: Any = None


_LINE: Final = msgspec.json.Decoder(_Line)
_BODY: Final = msgspec.json.Decoder(_Body)


def serves(url: str) -> bool:
    """Whether rows may be for this endpoint."""
    endpoint = ENDPOINTS.get(url)
    return endpoint is not None and endpoint.admitted and not endpoint.form


def body_of(line: bytes) -> bytes:
    """Returns the body of a request of a line that has been checked, as it is there."""
    return bytes(_LINE.decode(line).body)


class InputCheck:
    """Checks the lines of one input file, in their order."""

    def __init__(self, most_rows: int, most_bytes: int) -> None:
        """`most_rows`: that the file may have. `most_bytes`: of one line."""
        self._most_rows = most_rows
        self._most_bytes = most_bytes
        self._ids: set[str] = set()
        self.models: dict[str, None] = {}  # of the rows until now, in their order
        self._number = 0
        self._begin = 0

    def take(self, line: bytes) -> InputRow | Problem | None:
        """Checks the next line, with its line break. None: it is blank."""
        self._number += 1
        begin, self._begin = self._begin, self._begin + len(line)
        if not begin and line.startswith(_BYTE_ORDER_MARK):  # as editors of Windows begin a file
            begin, line = len(_BYTE_ORDER_MARK), line.removeprefix(_BYTE_ORDER_MARK)
        if self._number > MAX_LINES:
            most = f"the file has more than {MAX_LINES} lines, which is the most"
            return self._problem("too_many_lines", most)
        if not line.strip(_BLANK):
            return None
        row = self._read(line, begin)
        if isinstance(row, InputRow):
            if row.custom_id in self._ids:
                return self._problem(
                    "duplicate_custom_id",
                    f"the custom_id {row.custom_id[:80]!r} is that of a line before",
                    "custom_id",
                )
            if len(self._ids) >= self._most_rows:
                most = f"the file has more than {self._most_rows} rows, which is the most"
                return self._problem("too_many_rows", most)
            self._ids.add(row.custom_id)
            self.models[row.model] = None
            if len(self.models) > MAX_MODELS:
                most = f"the file has rows of more than {MAX_MODELS} models, which is the most"
                return self._problem("too_many_models", most, "body.model")
        return row

    def end(self) -> Problem | None:
        """Returns what is wrong with the file as a whole."""
        return None if self._ids else Problem("empty_file", "the input file has no rows")

    def _read(self, line: bytes, begin: int) -> InputRow | Problem:
        if len(line) > self._most_bytes:
            most = f"the line is longer than {self._most_bytes} bytes, which is the most"
            return self._problem("line_too_long", most)
        try:
            read = _LINE.decode(line)
            body = _BODY.decode(read.body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            rule = "each line must be an object with custom_id, method, url and body"
            return self._problem("invalid_json_line", f"{rule}: {error}"[:300])
        if not 0 < len(read.custom_id) <= MAX_ID_CHARACTERS or "\0" in read.custom_id:
            rule = f"the custom_id must have 1 to {MAX_ID_CHARACTERS} characters, and no NUL"
            return self._problem("invalid_custom_id", rule, "custom_id")
        if read.method != "POST":
            text = f"the method is {read.method[:20]!r}, it must be POST"
            return self._problem("invalid_method", text, "method")
        if not serves(read.url):
            text = f"batches do not serve the url {read.url[:80]!r}"
            return self._problem("invalid_url", text, "url")
        for name in ("stream", "background"):
            if getattr(body, name) not in (None, False):
                text = f"{name} must not be true in a batch"
                return self._problem("invalid_request", text, f"body.{name}")
        model = body.model.replace("\0", "") if isinstance(body.model, str) else ""
        return InputRow(read.custom_id, read.url, model[:MAX_MODEL_CHARACTERS], begin, len(line))

    def _problem(self, code: str, message: str, param: str | None = None) -> Problem:
        return Problem(code, message, self._number, param)


def answered(request_id: str, custom_id: str, status: int, body: bytes) -> bytes:
    """Returns the line of a row that was answered: `body` of an engine or of this sidecar."""
    content: Any
    try:
        body.decode()  # which a decoder that skips strings does not check
        # As it is, in a tenth of the time: a number that is decoded may be written in another way.
        content = msgspec.json.decode(body, type=Any if b"\n" in body else msgspec.Raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        content = body.decode("utf-8", "replace")
    response = {"status_code": status, "request_id": request_id, "body": content}
    return _line(request_id, custom_id, response, None)


def aborted(row_id: str, custom_id: str, code: str, message: str) -> bytes:
    """Returns the line of a row without an answer. `code`: OpenAI's, such as `batch_expired`."""
    return _line(row_id, custom_id, None, {"code": code, "message": message})


def _line(
    row_id: str, custom_id: str, response: dict[str, Any] | None, error: dict[str, str] | None
) -> bytes:
    document = {
        "id": f"batch_req_{row_id}", "custom_id": custom_id, "response": response, "error": error
    }  # fmt: skip
    return msgspec.json.encode(document) + b"\n"
