"""`$(VAR)` in env, command and args, as Kubernetes expands it. Pure.

The rule is k8s.io/kubernetes/third_party/forked/golang/expansion: a defined variable is put in, an
undefined reference stays as it is written, `$$` is one dollar sign (so that `$$(VAR)` is never
expanded), any other `$` is itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_REFERENCE = re.compile(r"\$(?:(?P<dollar>\$)|\((?P<name>[^)]*)\))")


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """`text` with every reference to one of `variables` replaced by its value."""

    def put(found: re.Match[str]) -> str:
        if found["dollar"]:
            return "$"
        return variables.get(found["name"], found[0])

    return _REFERENCE.sub(put, text)
