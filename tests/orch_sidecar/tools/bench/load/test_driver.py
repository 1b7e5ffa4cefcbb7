"""Open files: as many as there are connections."""

from __future__ import annotations

import subprocess
import sys

# In a process of its own, for a hard limit cannot be raised again.
_CODE = """
import resource
from orch_sidecar.tools.bench.load.driver import raise_file_limit
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 1000))
raise_file_limit()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_process_takes_as_many_as_it_may_have() -> None:
    done = subprocess.run([sys.executable, "-c", _CODE], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "1000 1000\n"), done.stderr
