"""The proxies under test, and how each is started in front of the scripted engine.

Every target is configured for throughput as its users would: keep-alive to the engine, no access
log, round robin in the Rust routers (their default policy halves their requests/s). A target that
cannot be started is reported and does not end the run.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.benchmarks.proxy import build, processes
from tests.benchmarks.proxy.processes import Child, TargetFailed
from vllm_plugin.contracts import profile as profiles

SLOTS = 16384
"""Slots the scripted engine reports: more than the load ever takes, so that nothing queues."""

DIRECT, SIDECAR, TRACED, RIVAL = "direct", "sidecar", "sidecar+tracing", "vllm-router"
FLOOR = "floor"
"""aiohttp's server with a spliced upstream: what a relay on it costs at least."""
BASELINE, BASELINE_TRACED = "baseline", "baseline+tracing"
"""The sidecar of another checkout (``--baseline``)."""
TRACING = (TRACED, BASELINE_TRACED)
SPANS_PER_REQUEST = 3
"""The request, its wait for a slot, its way to the engine."""

NGINX_CONF = """\
worker_processes 1;
daemon off;
pid {dir}/nginx.pid;
error_log stderr warn;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    client_body_temp_path {dir}/nginx-body;
    proxy_temp_path {dir}/nginx-proxy;
    fastcgi_temp_path {dir}/nginx-fastcgi;
    uwsgi_temp_path {dir}/nginx-uwsgi;
    scgi_temp_path {dir}/nginx-scgi;
    keepalive_requests 1000000000;
    tcp_nodelay on;
    upstream engine {{
        server 127.0.0.1:{engine};
        keepalive 256;
        keepalive_requests 1000000000;
    }}
    server {{
        listen 127.0.0.1:{port} backlog=4096;
        location / {{
            proxy_pass http://engine;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
        }}
    }}
}}
"""


@dataclass(frozen=True, slots=True)
class Setting:
    """Where a target runs: ports of the engine, of itself and of the trace sink."""

    engine: int
    port: int
    sink: int
    dir: Path


@dataclass(frozen=True, slots=True)
class Plan:
    """How to start a target: the command, the path that says it is ready, its environment."""

    command: list[str]
    ready: str
    env: dict[str, str]
    ready_s: float = 30.0


@dataclass(slots=True)
class Target:
    """A measured target; ``why_not`` instead of a port when it could not be started."""

    name: str
    port: int = 0
    child: Child | None = None
    why_not: str = ""


def _nginx(s: Setting) -> Plan:
    binary = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
    if binary is None:
        raise TargetFailed("not installed (Debian package nginx-light)")
    conf = s.dir / "nginx.conf"
    conf.write_text(NGINX_CONF.format(dir=s.dir, engine=s.engine, port=s.port))
    return Plan([binary, "-c", str(conf), "-p", str(s.dir), "-e", "stderr"], "/health", {})


def _router(name: str, *words: str) -> Callable[[Setting], Plan]:
    def plan(s: Setting) -> Plan:
        command = [str(build.router(name)), *words]
        command += ["--worker-urls", f"http://127.0.0.1:{s.engine}"]
        command += ["--host", "127.0.0.1", "--port", str(s.port), "--policy", "round_robin"]
        command += ["--prometheus-host", "127.0.0.1"]
        command += ["--prometheus-port", str(processes.free_port())]
        return Plan(command, "/readiness", {})

    return plan


def _script(name: str) -> Callable[[Setting], Plan]:
    def plan(s: Setting) -> Plan:
        engine = f"http://127.0.0.1:{s.engine}"
        command = [sys.executable, str(build.SOURCES / name), engine, str(s.port)]
        return Plan(command, "/health", {})

    return plan


def sidecar(s: Setting) -> Plan:
    """The sidecar of this checkout."""
    return _sidecar_command(s, _all_slots(profiles.directory(), s.dir / "all-slots.yaml"))


def _all_slots(directory: Path, file: Path) -> str:
    """Writes the cloud profile of `directory` without its limits to `file`, and returns its name.

    The relay is measured, not the policy: as many streams at once as the engine has slots.
    """
    rules = yaml.safe_load((directory / "cloud.yaml").read_text())
    rules["admission"]["interactive"] |= {
        "tpot_p95_ms": None,
        "batch": {"least": 1, "most": SLOTS},
    }
    file.write_text(yaml.safe_dump(rules))
    return str(file)


def _sidecar_command(s: Setting, profile: str, *flags: str) -> Plan:
    command = [sys.executable, *flags, "-m", "orch_sidecar", "sidecar"]
    command += ["--engine-url", f"http://127.0.0.1:{s.engine}"]
    command += ["--host", "127.0.0.1", "--port", str(s.port), "--profile", profile]
    return Plan(command, "/readyz", {})


def baseline(checkout: Path) -> Callable[[Setting], Plan]:
    """The sidecar of another checkout, in this environment."""

    def plan(s: Setting) -> Plan:
        profile = _all_slots(checkout / "profiles", s.dir / "all-slots-baseline.yaml")
        # -P: the packages of the working directory are not the ones that are meant.
        made = _sidecar_command(s, profile, "-P")
        return Plan(made.command, made.ready, {"PYTHONPATH": str(checkout)})

    return plan


def traced(untraced: Callable[[Setting], Plan]) -> Callable[[Setting], Plan]:
    """The same with an exporter of traces to the sink."""

    def plan(s: Setting) -> Plan:
        env = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{s.sink}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        }
        made = untraced(s)
        return Plan(made.command, made.ready, made.env | env)

    return plan


PLANS: dict[str, Callable[[Setting], Plan] | None] = {
    DIRECT: None,
    "nginx": _nginx,
    "sglang-router": _router("sglang-router", "launch", "--log-level", "warn"),
    "plain aiohttp": _script("plain_proxy.py"),
    FLOOR: _script("floor_proxy.py"),
    RIVAL: _router(RIVAL, "--log-level", "warning"),
    SIDECAR: sidecar,
    TRACED: traced(sidecar),
}
"""In the order they are measured: the rival right before us, because a shared machine's speed
changes within seconds."""


def start_engine(name: str, dir: Path) -> tuple[Child, int]:
    """Starts a scripted engine (also the trace sink) and returns it with its port.

    Raises:
        BuildFailed: it does not compile.
        TargetFailed: it does not answer.
    """
    port = processes.free_port()
    command = [str(build.program("upstream")), str(port), str(SLOTS)]
    child = processes.start(name, command, dir)
    processes.wait_ready(child, f"http://127.0.0.1:{port}/health", 10)
    return child, port


def start_target(name: str, engine: int, sink: int, dir: Path) -> Target:
    """Starts one target and waits until it is ready; never raises for a target's own failure."""
    plan_for = PLANS[name]
    if plan_for is None:
        return Target(name, engine)
    target = Target(name, processes.free_port())
    try:
        plan = plan_for(Setting(engine, target.port, sink, dir))
        target.child = processes.start(name.replace(" ", "-"), plan.command, dir, plan.env)
        ready_url = f"http://127.0.0.1:{target.port}{plan.ready}"
        processes.wait_ready(target.child, ready_url, plan.ready_s)
    except (TargetFailed, build.BuildFailed) as error:
        target.why_not = str(error)
        stop_all([target.child])
    return target


def stop_all(children: Iterable[Child | None]) -> None:
    """Stops every process given; absent ones are skipped."""
    for child in children:
        if child is not None:
            processes.stop(child)
