"""`orch facts from-batch`: eight rows on an offline engine of four slots, at a server that has one
batch for one key."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from orch_sidecar.tools.facts.tables.files import read
from orch_sidecar.tools.facts.tables.row import Label
from orch_sidecar.tools.facts.tables.table import check, valid_rows
from tests.orch_sidecar.tools.facts import snapshots
from tests.orch_sidecar.tools.facts.conftest import Run

BEGAN_S = 1_763_726_409  # 2025-11-21T12:00:09Z
BATCH: dict[str, Any] = {
    "id": "batch_1", "status": "completed", "in_progress_at": BEGAN_S,
    "finalizing_at": BEGAN_S + 1, "request_counts": {"total": 8, "completed": 8, "failed": 0},
    "output_file_id": "file-1-output", "error_file_id": None,
}  # fmt: skip
BEFORE: dict[str, Any] = {
    "pool": "offline", "profile": "offline", "measurement_type": "offline", "slots_total": 4,
    "generated_tokens_total": 1000, "prefill": {"tokens": 500, "seconds": 0.1},
    "observed_at": "2025-11-21T12:00:06Z",
}  # fmt: skip
AFTER: dict[str, Any] = BEFORE | {
    "requests_total": 108, "steps_by_batch": {"1": [10, 0.1], "4": [83, 1.0]},
    "busy_seconds_total": 1.8, "generated_tokens_total": 1320,
    "prefill": {"tokens": 580, "seconds": 0.2}, "observed_at": "2025-11-21T12:00:13Z",
}  # fmt: skip
CLOUD = {"profile": "cloud", "measurement_type": "batched_online"}


def line(number: int = 0, **body: Any) -> dict[str, Any]:
    """Returns a line of the output: of chat, or of responses if `number` is odd."""
    usage = {"input_tokens": 10, "output_tokens": 40}
    if number % 2 == 0:
        usage = {"prompt_tokens": 10, "completion_tokens": 40}
    answer = {"model": "tiny", "usage": usage} | body
    return {"custom_id": f"row-{number}", "response": {"status_code": 200, "body": answer}}


LINES = [line(number) for number in range(8)]
Import = Callable[..., tuple[int, str, str]]


@pytest.fixture
def from_batch(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Import]:
    """Runs the command. `batch`, `before`, `after`: changes of the batch, and of the states of the
    engine; `lines`: of the output."""
    served: dict[str, list[Any]] = {}

    class Sidecar(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            mine = self.headers["Authorization"] == "Bearer key-1"
            found = served.get(self.path) if mine else None
            self.send_response(404 if found is None else 200)
            self.end_headers()
            self.wfile.write("\n".join(map(json.dumps, found or ())).encode())

        def log_message(self, *_: object) -> None:
            """Keeps stderr for the command."""

    def run_it(*words: str, lines: Any = LINES, **changes: Any) -> tuple[int, str, str]:
        batch, before, after = (changes.get(name, {}) for name in ("batch", "before", "after"))
        served["/v1/batches/batch_1"] = [BATCH | batch]
        served["/v1/files/file-1-output/content"] = lines
        ends: list[str | Path] = []
        for when, fields in (("before", BEFORE | before), ("after", AFTER | after)):
            path = tmp_path / f"{when}.json"
            path.write_text(json.dumps(snapshots.document(**fields)), encoding="utf-8")
            ends += [f"--capabilities-{when}", path]
        url = f"http://127.0.0.1:{server.server_port}"
        return run("from-batch", "--url", url, *ends, *words)

    monkeypatch.setenv("OPENAI_API_KEY", "key-1")
    with ThreadingHTTPServer(("127.0.0.1", 0), Sidecar) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield run_it
        server.shutdown()
        thread.join()


def test_batch_that_had_the_engine_for_itself_is_an_offline_measurement(
    from_batch: Import, tmp_path: Path
) -> None:
    table = tmp_path / "facts.csv"
    words = "batch_1", "--output", str(table)
    assert from_batch(*words) == (0, "", f"{table}: 1 added, 0 already present\n")
    found = read(table)
    assert check(found) == []
    [placed] = valid_rows(found)
    row = placed.row
    assert (row.measurement_type, row.batch, row.model_id) == (Label.OFFLINE, 4, "tiny")
    # From the second of the first row to the end of that of the last one: 9 to 10 are 2 s.
    assert (row.input_tokens, row.throughput_tokens_per_sec) == (10, 8 * 40 / 2)
    assert "arrivals=at_once; requests=8; window_s=2" in row.scenario_notes
    assert row.source_tag.startswith("batch_1 sha256:")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        # It did not have an offline engine for itself.
        ({"before": CLOUD, "after": CLOUD}, "(profile cloud) is batched_online"),
        ({"after": {"requests_total": 109}}, "the engine accepted 9 requests in the window"),
        ({"after": {"foreign": 1}}, "sequences in the engine after the measurement: 1 foreign"),
        ({"after": {"generated_tokens_total": 1321}}, "the engine generated 321 tokens"),
        ({"after": {"steps_by_batch": {"2": [150, 1]}}}, "offline needs a batch of 4"),
        ({"after": {"observed_at": "2025-11-21T12:00:08Z"}}, "the state after the run is from"),
        # It is no measurement.
        ({"batch": {"status": "expired"}}, "status is 'expired'"),
        ({"batch": {"status": "failed", "output_file_id": None}}, "status is 'failed'"),
        ({"batch": {"output_file_id": None, "output": LINES}}, "output is missing"),
        ({"batch": {"request_counts": {"completed": 7, "failed": 1}}}, "counts.failed is 1"),
        ({"batch": {"finalizing_at": BEGAN_S - 1}}, "finalizing_at"),
        ({"lines": LINES[:7]}, "rows of the output '7'"),
        ({"lines": [*LINES[:7], line(model="other")]}, "model 'other, tiny'"),
        ({"lines": [*LINES[:7], line(usage={"prompt_tokens": 1})]}, "response.body.usage"),
    ],
)
def test_batch_that_is_no_offline_measurement_is_rejected_with_the_reason(
    from_batch: Import, changes: dict[str, Any], reason: str
) -> None:
    code, out, err = from_batch("batch_1", **changes)
    assert (code, out) == (1, "")
    assert err.startswith("batch_1: ")
    assert reason in err


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("no/batch",), "/v1/batches/no%2Fbatch: 404 Not Found"),
        (("b", "--url", "http://127.0.0.1:9"), "cannot read http://127.0.0.1:9/v1/batches/b: "),
    ],
)
def test_batch_that_cannot_be_read_exits_with_2(
    from_batch: Import, words: tuple[str, ...], error: str
) -> None:
    code, _, err = from_batch(*words)
    assert code == 2
    assert error in err
