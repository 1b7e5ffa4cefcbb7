"""The text formats of metrics, and which of them a scraper accepts.

OpenMetrics, which has exemplars, if it is accepted (Prometheus does), else the classic text format.
Their samples differ in nothing else. What is few comes from the library's registry.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics_exposition
from prometheus_client.utils import floatToGoString

TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"

# A compiled module makes a float of an integer that is only known as a `float`: a count would be
# shown as 5.0, or as 1.2e+06.
Number = int | float

END: Final = b"# EOF\n"  # of OpenMetrics

GAUGE, COUNTER, HISTOGRAM, INFO = "gauge", "counter", "histogram", "info"
_SUFFIXES: Final = {COUNTER: "_total", INFO: "_info"}
_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})

_number: Final[Callable[[float], str]] = floatToGoString  # untyped
# By default the library writes an underscore for the colon in vLLM's names.
_openmetrics: Final[Callable[[CollectorRegistry], bytes]] = partial(
    openmetrics_exposition.generate_latest,  # untyped
    escaping=openmetrics_exposition.ALLOWUTF8,
)


def rendered(registry: CollectorRegistry, *, openmetrics: bool) -> bytes:
    """Returns the families of a registry, without the end of the text."""
    if not openmetrics:
        return generate_latest(registry)
    return _openmetrics(registry).removesuffix(END)


def head(name: str, text: str, kind: str, unit: str = "", *, openmetrics: bool) -> str:
    """Returns the lines that precede the samples of a family. `kind`: as in OpenMetrics."""
    if openmetrics:
        units = f"# UNIT {name} {unit}\n" if unit else ""
        return f"# HELP {name} {text}\n# TYPE {name} {kind}\n{units}"
    name += _SUFFIXES.get(kind, "")
    return f"# HELP {name} {text}\n# TYPE {name} {'gauge' if kind == INFO else kind}\n"


def sample_name(name: str, kind: str) -> str:
    """Returns the name of a family's samples."""
    return name + _SUFFIXES.get(kind, "")


def number(value: Number) -> str:
    """Returns a number as both formats have it."""
    return str(value) if type(value) is int else _number(value)


def escaped(value: str) -> str:
    """Returns the value of a label as both formats have it."""
    return value.translate(_ESCAPES)


def prefers_openmetrics(accept: str) -> bool:
    """Returns whether OpenMetrics 1 is accepted by name, with at least the weight of classic text.

    Invalid media ranges are ignored: metrics in any format are better than an error.
    """
    weights = {"application/openmetrics-text": 0.0, "text/plain": 0.0}
    for each in accept.lower().split(","):
        name, *parameters = (part.strip() for part in each.split(";"))
        if name not in weights:
            continue
        values = dict(parameter.partition("=")[::2] for parameter in parameters)
        version = values.get("version", "").strip('"')
        if name != "text/plain" and version.partition(".")[0] not in ("", "1"):
            continue
        try:
            weights[name] = max(weights[name], float(values.get("q", "1")))
        except ValueError:
            continue
    # 0 means not acceptable; the smallest other weight is 0.001 (RFC 9110, 12.4.2).
    return weights["application/openmetrics-text"] >= max(weights["text/plain"], 0.001)
