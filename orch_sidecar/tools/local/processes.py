"""Child processes that do not outlive their parent, and whose output is kept."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

logger = logging.getLogger("orch.local")

_PR_SET_PDEATHSIG: Final = 1


def _die_with_parent() -> None:
    """In the child, before it runs: SIGTERM when the parent is gone, however it went (Linux)."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _stand_back(session: int, niceness: int) -> None:
    """Linux shares the cores among sessions before it shares them among processes (autogroup), so
    that the niceness of a process says little to those of other sessions; that of a session does.
    """
    try:
        Path(f"/proc/{session}/autogroup").write_text(str(niceness))
    except FileNotFoundError:
        return  # a kernel that does not share by sessions
    except OSError as error:
        logger.warning("the session of process %d cannot be made nice: %s", session, error)


class Child:
    """A process in a session of its own: Ctrl-C reaches it only through its parent."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environ: Mapping[str, str],
        log: Path,
        niceness: int = 0,
    ) -> None:
        """`niceness`, from 0 to 19: how far its session stands back behind others for a core."""
        self.name = name
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as output:
            # The commands are this package's own; the arguments are the operator's.
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
            _stand_back(self._process.pid, niceness)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def signal(self, number: int) -> None:
        if self.exit_code is None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """Ends the process and all it started, at once."""
        if self.exit_code is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self, within_s: float) -> int:
        """SIGTERM, and after `within_s` seconds SIGKILL for it and all it started."""
        self.signal(signal.SIGTERM)
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            self.kill()
        code = self.exit_code
        assert code is not None
        return code

    def last_lines(self, count: int) -> list[str]:
        """The end of what it printed."""
        with self.log.open("rb") as output:
            output.seek(max(0, self.log.stat().st_size - 65_536))
            return output.read().decode(errors="replace").splitlines()[-count:]
