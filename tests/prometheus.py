"""A real Prometheus, and what the monitoring manifests give it.

Debian's package `prometheus` has both programs; without them the tests that need one are skipped.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
import yaml

from tests.patience import HANG_S

MANIFESTS: Final = Path(__file__).parents[1] / "k8s" / "overlays"
PROMETHEUS, PROMTOOL = shutil.which("prometheus"), shutil.which("promtool")
needs_prometheus: Final = pytest.mark.skipif(
    PROMETHEUS is None or PROMTOOL is None,
    reason="Prometheus is missing: apt-get install --no-install-recommends prometheus",
)
_START_S: Final = 30.0


def alerting_rules() -> dict[str, Any]:
    """The rules of the PrometheusRule, as Prometheus reads them from a file."""
    text = (MANIFESTS / "monitoring" / "rules.yaml").read_text(encoding="utf-8")
    spec: dict[str, Any] = yaml.safe_load(text)["spec"]
    return spec


def in_seconds(rules: dict[str, Any]) -> dict[str, Any]:
    """The same rules with a second in place of each minute, a minute in place of each hour."""
    shorter = {"m": "s", "h": "m"}

    def rule(given: dict[str, Any]) -> dict[str, Any]:
        expr = re.sub(r"\[(\d+)([mh])\]", lambda at: f"[{at[1]}{shorter[at[2]]}]", given["expr"])
        changed = given | {"expr": expr}
        if "for" in given:
            changed["for"] = given["for"][:-1] + shorter[given["for"][-1]]
        return changed

    return {
        "groups": [
            group | {"rules": [rule(each) for each in group["rules"]]} for group in rules["groups"]
        ]
    }


def promtool(directory: Path, *arguments: str) -> str:
    """Runs promtool in a directory, and returns what it prints. Fails unless it succeeds."""
    assert PROMTOOL is not None
    done = subprocess.run(
        [PROMTOOL, *arguments], cwd=directory, capture_output=True, text=True, timeout=HANG_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@dataclass(frozen=True, slots=True)
class Prometheus:
    """One that runs."""

    url: str
    http: aiohttp.ClientSession

    async def get(self, path: str, **params: str) -> Any:
        """Returns the data of an answer of its API. Fails with the error of any other."""
        async with self.http.get(f"{self.url}/api/v1/{path}", params=params) as response:
            document = await response.json()
        assert document["status"] == "success", document
        return document["data"]

    async def query(self, expression: str) -> dict[frozenset[tuple[str, str]], float]:
        """The values of an expression now, by their labels; values that are no numbers are none."""
        data = await self.get("query", query=expression)
        assert data["resultType"] == "vector", expression
        values = {frozenset(each["metric"].items()): each["value"][1] for each in data["result"]}
        return {labels: float(value) for labels, value in values.items() if value != "NaN"}

    async def firing(self) -> list[dict[str, str]]:
        """The labels of the alerts that fire now."""
        alerts = (await self.get("alerts"))["alerts"]
        return [each["labels"] for each in alerts if each["state"] == "firing"]


@asynccontextmanager
async def prometheus(
    directory: Path,
    targets: Mapping[int, Mapping[str, str]],
    rules: dict[str, Any] | None = None,
    scrape_every: str = "1s",
) -> AsyncIterator[Prometheus]:
    """Runs one that scrapes the sidecars at these ports, each with these labels."""
    configs: Sequence[Any] = [
        {"targets": [f"127.0.0.1:{port}"], "labels": dict(labels)}
        for port, labels in targets.items()
    ]
    files = {
        "prometheus.yaml": {
            "global": {"scrape_interval": scrape_every, "evaluation_interval": "1s"},
            "rule_files": ["rules.yaml"],
            "scrape_configs": [{"job_name": "sidecars", "static_configs": configs}],
        },
        "rules.yaml": rules or {"groups": []},
    }
    for name, content in files.items():
        (directory / name).write_text(yaml.safe_dump(content), encoding="utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert PROMETHEUS is not None
    log = (directory / "prometheus.log").open("wb")
    process = await asyncio.create_subprocess_exec(
        PROMETHEUS,
        f"--config.file={directory / 'prometheus.yaml'}",
        f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        stdout=log,
        stderr=log,
    )
    try:
        async with aiohttp.ClientSession() as http:
            running = Prometheus(f"http://127.0.0.1:{port}", http)
            await _ready(running, process, directory)
            await _scraping(running, len(targets))
            yield running
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
        log.close()


async def _ready(running: Prometheus, process: asyncio.subprocess.Process, directory: Path) -> None:
    async with asyncio.timeout(_START_S):
        while True:
            assert process.returncode is None, (directory / "prometheus.log").read_text()
            try:
                async with running.http.get(f"{running.url}/-/ready") as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientConnectionError:
                pass  # it does not listen yet
            await asyncio.sleep(0.05)


async def _scraping(running: Prometheus, targets: int) -> None:
    """Waits until all targets were scraped twice: a counter that changes later does so for it."""
    async with asyncio.timeout(_START_S):
        while True:
            if len(await running.query("count_over_time(up[1m]) > 1")) == targets:
                return
            await asyncio.sleep(0.1)
