"""Kubernetes' ways to write numbers: `64Mi`, `25%`. Pure."""

from __future__ import annotations

import math
import re

from tests.k8s.runner.schema.part import SpecError

_FACTORS = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}


def bytes_of(text: str) -> int:
    """A quantity of memory in bytes.

    Raises:
        SpecError: not a number with one of Kubernetes' suffixes.
    """
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([kMGT]|[KMGT]i)?", text)
    if found is None:
        raise SpecError(f"{text!r} is not a quantity such as 64Mi, 1Gi or 500M")
    return math.ceil(float(found[1]) * _FACTORS[found[2] or ""])


def share_of(text: int | str, whole: int, *, round_up: bool) -> int:
    """A count, or a percentage of `whole`: a Deployment rounds maxSurge up, maxUnavailable down.

    Raises:
        SpecError: neither a whole number nor `N%`.
    """
    if isinstance(text, int):
        return text
    found = re.fullmatch(r"([0-9]+)%", text)
    if found is None:
        raise SpecError(f"{text!r} is neither a whole number nor a percentage")
    exact = int(found[1]) * whole
    return -(-exact // 100) if round_up else exact // 100
