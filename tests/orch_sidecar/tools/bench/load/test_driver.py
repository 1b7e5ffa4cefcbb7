"""Open files: as many as there are connections."""

from __future__ import annotations

import subprocess
import sys

import pytest

# In a process of its own, for a hard limit cannot be raised again.
_CODE = """
import resource
from orch_sidecar.tools.bench.load.driver import raise_file_limit
resource.setrlimit(resource.RLIMIT_NOFILE, (100, {hard}))
if why := raise_file_limit({connections}):
    print(why)
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def after(connections: int, hard: int) -> list[str]:
    """Returns the error, if any, and then the limits of the process."""
    code = _CODE.format(connections=connections, hard=hard)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("connections", [0, 1, 500])
def test_process_takes_as_many_as_it_may_have(connections: int) -> None:
    assert after(connections, 1000) == ["1000 1000"]


def test_more_than_it_may_have_are_rejected_with_both_numbers() -> None:
    assert after(1000, 1000) == [
        "1000 concurrent requests need 1064 open files, but the hard limit is 1000: "
        "raise it (ulimit -Hn) or send fewer requests at once",
        "100 1000",
    ]
