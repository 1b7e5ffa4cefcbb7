"""The sidecars of the manifests, run with the settings of their pods: who is served there, and who
may claim slots.

Stand-ins: ports, the addresses of engines and pools, and directories in place of volumes.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

import pytest
import yaml

from orch_sidecar.api.endpoints import STREAM
from orch_sidecar.auth.keys import InvalidKeyFile
from orch_sidecar.config.settings import SidecarSettings
from tests.integration.client import AT_ONCE, CHAT, Fields
from tests.integration.keyed import KeyRing
from tests.integration.running import Running, Start
from tests.integration.scripted_engine import ScriptedEngine
from tests.integration.wire import Answer
from tests.k8s.objects import K8S, Manifest, constants, container, named
from tests.k8s.test_manifests_documented import documented
from tests.k8s.test_manifests_nodes import SERVED

VOLUMES: Final = "/etc/orch"
INSTANCE: Final = "e" * 16
CLAIM: Final = f"/v1/capabilities/claims/{INSTANCE}"
CLAIMED: Final = b'{"cost": 1, "urgent": true}'
# Of parents, with their methods.
ROUTES: Final = {
    CLAIM: "PUT",
    f"/v1/capabilities/leases/{INSTANCE}": "DELETE",
    f"{STREAM}?instance={INSTANCE}": "GET",
}
ALICE, ENTRY, PROMETHEUS, STRANGER = "alice", "entry", "prometheus", "stranger"
KEYED: Final = ("own_keys", "inference-pool", "kserve")
# The Service's names within the cluster, and that of the Ingress.
NAMES: Final = ("orch", "orch.orch", "orch.orch.svc.cluster.local", "10.96.0.7:80", "[fd00::7]:80")


@dataclass(frozen=True, slots=True)
class Pods:
    """What the pods of an overlay mount."""

    folder: str
    place: Path
    ring: KeyRing

    def settings(self, deployment: Manifest) -> dict[str, Any]:
        """The settings of a pod's sidecar; its volumes lie below `place`."""
        variables = {
            name.removeprefix("ORCH_").lower(): value.replace("$(POOL)", "cloud")
            for name, value in constants(container(deployment, "sidecar")).items()
            if name.startswith("ORCH_")
        }
        # What no manifest says has its default here, and not that of `start`.
        found: dict[str, Any] = {"parents": SidecarSettings.model_fields["parents"].default}
        if (config := variables.pop("config", None)) is not None:
            data = named(self.folder, "ConfigMap", "orch-entry").body["data"]
            found |= yaml.safe_load(data[PurePosixPath(config).name])
        here: dict[str, Any] = self._here(found | variables)
        return here | {"port": 0, "admin_port": 0, "drain_timeout_s": 0.2}

    def _here(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: self._here(each) for name, each in value.items()}
        if isinstance(value, list):
            return [self._here(each) for each in value]
        return value.replace(VOLUMES, str(self.place)) if isinstance(value, str) else value

    def give_keys(self) -> None:
        """What the operator's Secrets hold."""
        self.ring.add(ALICE)
        self.ring.add(ENTRY, sidecar=True)
        self.ring.add(PROMETHEUS, metrics=True)
        (self.place / "keys" / "salt").write_text(64 * "5")
        (self.place / "sidecar").mkdir()
        (self.place / "sidecar" / "key").write_text(self.ring.keys[ENTRY])

    def headers(self, name: str) -> Fields:
        return [self.ring.bearer(name)] if name in self.ring.keys else []


@pytest.fixture
def pods(request: pytest.FixtureRequest, tmp_path: Path) -> Pods:
    """Those of the overlay that the test names."""
    folder: str = request.param
    profiles = tmp_path / "profiles"
    profiles.mkdir()
    for name, text in named(folder, "ConfigMap", "orch-profiles").body["data"].items():
        (profiles / name).write_text(text)
    (tmp_path / "keys").mkdir()
    return Pods(folder, tmp_path, KeyRing(tmp_path / "keys"))


async def pool_of(pods: Pods, start: Start) -> Running:
    """The sidecar of cloud's pod."""
    served = pods.folder == "kserve"
    deployment = SERVED if served else named(pods.folder, "Deployment", "orch-cloud")
    settings = pods.settings(deployment)
    del settings["engine_url"]
    return await start(**settings)


async def entry_of(pods: Pods, start: Start, pool: Running, **more: Any) -> Running:
    """An entry in front of it."""
    settings = pods.settings(named(pods.folder, "Deployment", "orch-entry")) | more
    [cloud] = [each for each in settings["pools"] if each["name"] == "cloud"]
    at = {"url": f"http://127.0.0.1:{pool.port}", "headless": False}
    return await start(**settings | {"pools": [cloud | at]})


async def status(running: Running, headers: Fields) -> int:
    return (await (await running.client()).post(CHAT, headers)).status


async def claimed(running: Running, headers: Fields) -> int:
    """What a claim of one who reads no state is answered with: 409, if it may claim at all."""
    return (await (await running.client()).request("PUT", CLAIM, CLAIMED, headers)).status


async def as_parent(running: Running, headers: Fields) -> set[int]:
    """The answers to one who may use none of the routes for parents."""
    found = set()
    for path, method in ROUTES.items():
        body = CLAIMED if method == "PUT" else None
        found.add((await (await running.client()).request(method, path, body, headers)).status)
    return found


@pytest.mark.parametrize("pods", ["one-gpu"], indirect=True)
async def test_base_serves_everybody_and_only_its_pools_take_claims_from_those_they_let_in(
    pods: Pods, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    pool = await pool_of(pods, start)
    with caplog.at_level(logging.WARNING):
        entry = await entry_of(pods, start, pool)
    assert "api_keys" in caplog.text
    assert await status(entry, ()) == 200
    assert await claimed(pool, ()) == 409
    assert await as_parent(entry, ()) == {403}


@pytest.mark.parametrize("pods", ["one-gpu"], indirect=True)
async def test_installation_that_has_the_secret_asks_for_keys_after_an_update(
    pods: Pods, start: Start
) -> None:
    pods.ring.add(ALICE)
    entry = await entry_of(pods, start, await pool_of(pods, start))
    assert await status(entry, ()) == 401
    assert await status(entry, pods.headers(ALICE)) == 200


@pytest.mark.parametrize("pods", ["own_keys", "inference-pool"], indirect=True)
async def test_with_keys_the_entry_gets_by_its_own_where_clients_get_by_theirs(
    pods: Pods, start: Start
) -> None:
    pods.give_keys()
    pool = await pool_of(pods, start)
    entry = await entry_of(pods, start, pool)
    assert await status(entry, pods.headers(STRANGER)) == 401
    assert await status(entry, pods.headers(ALICE)) == 200
    assert await as_parent(entry, pods.headers(ALICE)) == {403}


@pytest.mark.parametrize("pods", KEYED, indirect=True)
async def test_gateway_s_clients_need_keys_at_the_pools_and_claim_no_slots_there(
    pods: Pods, start: Start
) -> None:
    pods.give_keys()
    pool = await pool_of(pods, start)
    assert await status(pool, pods.headers(STRANGER)) == 401
    assert await status(pool, pods.headers(ALICE)) == 200
    assert await as_parent(pool, pods.headers(STRANGER)) == {401}
    assert await as_parent(pool, pods.headers(ALICE)) == {403}
    assert await claimed(pool, pods.headers(ENTRY)) == 409


@pytest.mark.parametrize("pods", ["own_keys"], indirect=True)
async def test_prometheus_reads_every_page_of_its_monitor_with_its_key_and_engines_by_that_alone(
    pods: Pods, start: Start, engine: ScriptedEngine
) -> None:
    def metrics(answer: Answer) -> None:
        answer.head(200)
        answer.end()

    engine.pages["/metrics"] = metrics
    pods.give_keys()
    pool = await pool_of(pods, start)
    monitor = named(pods.folder, "PodMonitor", "orch-pools").body["spec"]
    for each in monitor["podMetricsEndpoints"]:
        client = await pool.client()
        assert (await client.get(each["path"], pods.headers(PROMETHEUS))).status == 200
        without = (await client.get(each["path"])).status
        assert without == (401 if each["path"] == "/metrics/engine" else 200)


@pytest.mark.parametrize("pods", KEYED, indirect=True)
async def test_pool_without_its_secret_does_not_start(pods: Pods, start: Start) -> None:
    pods.give_keys()
    pods.ring.path.unlink()
    with pytest.raises(InvalidKeyFile, match=r"api_keys_file .* does not exist"):
        await pool_of(pods, start)


@pytest.mark.parametrize("pods", ["own_keys"], indirect=True)
async def test_opt_in_of_the_entry_does_not_start_without_the_secret(
    pods: Pods, start: Start, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Of the flat files, by a variable; of the component, in any case."""
    pods.give_keys()
    pool = await pool_of(pods, start)
    flat = Pods("one-gpu", tmp_path_factory.mktemp("flat"), pods.ring)
    shutil.copytree(pods.place / "profiles", flat.place / "profiles")
    with pytest.raises(InvalidKeyFile):
        await entry_of(flat, start, pool, api_keys_required="true")
    pods.ring.path.unlink()
    with pytest.raises(InvalidKeyFile):
        await entry_of(pods, start, pool)


@pytest.mark.parametrize("pods", ["own_keys"], indirect=True)
async def test_entry_that_has_its_key_is_served_by_pools_that_do_not_ask_for_it_yet(
    pods: Pods, start: Start
) -> None:
    """The order in which the page of Kubernetes switches keys on: in another nobody is served."""
    pods.give_keys()
    without = Pods("one-gpu", pods.place, pods.ring)
    entry = await entry_of(pods, start, await pool_of(without, start))
    assert await status(entry, pods.headers(ALICE)) == 200
    too_early = await entry_of(without, start, await pool_of(pods, start), wait=False)
    assert await status(too_early, [*pods.headers(ALICE), *AT_ONCE]) == 503


@pytest.mark.parametrize("pods", ["one-gpu", "own_keys"], indirect=True)
async def test_entry_answers_to_the_names_of_its_service_and_of_an_ingress(
    pods: Pods, start: Start
) -> None:
    pods.give_keys()
    entry = await entry_of(pods, start, await pool_of(pods, start))
    ingress = yaml.safe_load((K8S / "components" / "ingress" / "ingress.yaml").read_text())
    [rule] = ingress["spec"]["rules"]
    [(name, key)] = pods.headers(ALICE)
    for host in (*NAMES, rule["host"]):
        for path in ("/v1/models", "/livez", "/readyz"):
            client = await entry.client()
            client.send(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n{name}: {key}\r\n\r\n".encode())
            assert (await client.response("GET")).status == 200, (host, path)


def test_documented_variables_of_the_entry_are_valid_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    variables = [words[6].partition("=") for words in documented() if words[3:5] == ["set", "env"]]
    for name, _, value in variables:
        monkeypatch.setenv(name, value)
    settings = SidecarSettings(api_keys_file=Path("keys.yaml")).model_dump()
    assert {name.removeprefix("ORCH_").lower() for name, *_ in variables} <= set(settings)
    assert [str(each) for each in settings["gateways"]] == ["10.244.7.0/24"]
    assert settings["api_keys_required"] is True
