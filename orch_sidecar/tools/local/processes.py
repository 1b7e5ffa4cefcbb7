"""Child processes that do not outlive their parent and append their output to a file.

Each start is marked by a line. The file is closed to others: an engine may log prompts.
"""

from __future__ import annotations

import ctypes
import logging
import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Final

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
        """Kills the process and its children."""
        if self.exit_code is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self, within_s: float) -> int:
        """Sends SIGTERM, and after `within_s` seconds kills it and its children."""
        self.signal(signal.SIGTERM)
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
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
