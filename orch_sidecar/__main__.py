"""`python -m orch_sidecar` is `orch`."""

from orch_sidecar.cli import main

main()
