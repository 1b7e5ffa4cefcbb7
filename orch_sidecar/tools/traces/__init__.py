"""Reads public traces of traffic: when requests arrived, how long they were, which prefixes they
shared.

Pure. Imports `tools.arguments`, and of `tools.facts` what parses
documents. `orch bench`, `orch simulate` and `orch plan` replay the same `Trace`.
"""

from orch_sidecar.tools.traces.reader import read
from orch_sidecar.tools.traces.trace import InvalidTrace, Trace, TracedRequest

__all__ = ["InvalidTrace", "Trace", "TracedRequest", "read"]
