"""How long a test waits for what must come.

A wait that ends by itself finds a hang; it judges no speed. So it is longer than anything takes on
a machine whose cores are shared by dozens of processes, and a test that judges a time says so and
compares it with what would have happened instead. Pytest's own timeout, for a whole test, is in
pyproject.toml.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

HANG_S: Final = 300.0
# Engines load and compile for minutes where they get a tenth of a core.
READY_WITHIN_S: Final = 1_800.0


def wait_until(condition: Callable[[], object]) -> None:
    """Returns when the condition holds; fails when it does not within HANG_S."""
    deadline_s = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.001)
