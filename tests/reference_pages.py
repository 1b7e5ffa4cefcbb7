"""`python -m tests.reference_pages`: writes the tables of the documentation that the code has.

A page has a table between `<!-- generated: NAME -->` and `<!-- end -->`; a test compares them. What
a table says is written once, in the code: the description of a setting or of a key, the text of a
metric or of a refusal, the reason of a threshold. Only where more is to be read is added here.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Final, cast

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from orch_sidecar.api.headers import FAIRNESS_IDS, X_ORCH_CLASS, X_ORCH_QUEUE_EVENTS
from orch_sidecar.api.options import OPTIONS
from orch_sidecar.api.refusal import BY_REASON
from orch_sidecar.batches.progress import Progress
from orch_sidecar.config.pool_settings import PoolSettings
from orch_sidecar.config.settings import SidecarSettings
from orch_sidecar.observability import exposition, request_metrics
from orch_sidecar.observability.collector import Collector
from orch_sidecar.observability.metric_family import Family, HistogramFamily
from orch_sidecar.observability.metrics import Metrics
from orch_sidecar.observability.tracing import SpanCounts
from orch_sidecar.tools.facts.labels.thresholds import THRESHOLDS
from orch_sidecar.wire.client_connections import ClientConnections
from tests.documents import ROOT
from vllm_plugin.contracts.profile import (
    AdmissionRules,
    ArgumentRule,
    ClassRules,
    Profile,
    load,
    shipped,
)

PLACE: Final = re.compile(r"(<!-- generated: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)

# Where more is to be read about a setting, a key of a profile, an option or a refusal.
_MORE: Final[Mapping[str, str]] = {
    FAIRNESS_IDS[0]: "settings.md#gateways",
    X_ORCH_CLASS: "../explanation/admission.md#idle-requests",
    X_ORCH_QUEUE_EVENTS: "watching.md",
    "admission.split": "../explanation/parts.md",
    "allowed_hosts": "#host-names",
    "allowed_origins": "#web-pages-of-other-origins",
    "api_keys_file": "api-keys.md",
    "batches": "../how-to/batches.md",
    "cache_salt_file": "api-keys.md",
    "gateways": "#gateways",
    "parents": "../explanation/routing.md#parents",
    "pools": "#pools",
    "prefix_affinity": "../explanation/routing.md",
    "rate_limit_exceeded": "api-keys.md",
    "request_log": "operating.md",
    "sidecar_key": "../explanation/several-sidecars.md#who-may-claim-slots",
    "trace_url": "watching.md#the-page",
}
# The labels of histograms beside `pool`: their families name none.
_OF_REQUESTS: Final = ("class", "measurement_type")
_OF_OPERATIONS: Final = (
    *("class", "gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model"),
    "measurement_type",
)
_OF_HISTOGRAMS: Final[Mapping[str, Sequence[str]]] = {
    "orch_decode_batch_size": (),
    request_metrics.DURATION: (*_OF_OPERATIONS, "error_type"),
    request_metrics.FIRST_TOKEN: _OF_OPERATIONS,
    request_metrics.PER_TOKEN: _OF_OPERATIONS,
}

Row = Sequence[str]


def written(page: str) -> str:
    """Returns a page with its generated tables as the code has them. Raises KeyError for the name
    of a table that there is not."""
    return PLACE.sub(lambda place: f"{place[1]}\n{TABLES[place[2]]()}\n{place[3]}", page)


def _table(head: Row, rows: Iterable[Row]) -> str:
    """Returns a table in Markdown."""
    escaped = ([cell.replace("|", "\\|") for cell in row] for row in rows)
    lines = (head, ["---"] * len(head), *escaped)
    return "".join("| {} |\n".format(" | ".join(cells)).replace("|  |", "| |") for cells in lines)


def _described(name: str, text: str | None) -> str:
    assert text, f"{name} has no description"
    more = _MORE.get(name)
    return text if more is None else f"{text} ([more]({more}))"


def _default(field: FieldInfo, unset: str = "") -> str:
    if field.is_required():
        return "required"
    value = getattr(field.default, "value", field.default)
    if isinstance(value, bool):
        value = str(value).lower()
    return unset if value is None else f"`{value}`"


def _settings() -> str:
    fields = SidecarSettings.model_fields.items()
    rows = (
        (f"`ORCH_{name.upper()}`", _default(field), _described(name, field.description))
        for name, field in fields
    )
    return _table(("variable", "default", ""), rows)


def _fields(model: type[BaseModel], prefix: str = "") -> Iterator[Row]:
    for name, field in model.model_fields.items():
        text = _described(f"{prefix}{name}", field.description)
        yield f"`{prefix}{name}`", _default(field, "`null`"), text


def _keys() -> str:
    rows = (*_fields(Profile), *_fields(AdmissionRules, "admission."))
    return _table(("key", "default", ""), rows)


def _arguments() -> str:
    """What the shipped profiles set in vLLM."""
    profiles = {name: load(name).engine for name in shipped()}
    names = dict.fromkeys(name for engine in profiles.values() for name in engine)
    rows = (
        (f"`{name}`", *(_rule(engine.get(name)) for engine in profiles.values())) for name in names
    )
    return _table(("argument", *(f"`{name}`" for name in profiles)), rows)


def _rule(rule: ArgumentRule | None) -> str:
    if rule is None:
        return "vLLM's own"
    value = "`{}`".format(json.dumps(rule.value).strip('"'))
    if rule.fixed is not None:
        return f"{value}, fixed"
    least = "" if rule.minimum is None else f", at least {rule.minimum}"
    return f"{value}, or the value given{least}"


def _options() -> str:
    rows = ((f"`{name}`", _described(name, text)) for name, text in OPTIONS.items())
    return _table(("header", "value and effect"), rows)


def _refusals() -> str:
    rows = (
        (f"`{kind.code}`", str(kind.status), "yes" if kind.retriable else "no",
         _described(kind.code, kind.text))
        for kind in BY_REASON.values()
    )  # fmt: skip
    return _table(("code", "status", "retry", "why"), rows)


def _of_pool(family: Family | HistogramFamily) -> Row:
    if isinstance(family, HistogramFamily):
        labels = _OF_HISTOGRAMS.get(family.name, _OF_REQUESTS)
        return _metric(family.name, exposition.HISTOGRAM, ("pool", *labels), family.text)
    kind = exposition.COUNTER if family.counts else exposition.GAUGE
    kind = exposition.INFO if family.info else kind
    more = ("measurement_type",) if family.of_requests else ()
    return _metric(family.name, kind, ("pool", *family.labels, *more), family.text)


def _metric(name: str, kind: str, labels: Iterable[str], text: str) -> Row:
    shown = ", ".join(f"`{label}`" for label in sorted(labels))
    return f"`{exposition.sample_name(name, kind)}`", kind, shown, text


def _metrics() -> str:
    return _table(("metric", "kind", "labels", ""), asyncio.run(_all_metrics()))


async def _all_metrics() -> list[Row]:
    pools = cast("Any", SimpleNamespace(one=None, all=()))
    families = Collector(pools, None, dict).families(())
    metrics = Metrics(pools, SpanCounts())
    metrics.log_to(lambda ended: None, lambda: 0)
    metrics.watch_key_file(lambda: None)
    closed = {"_open": (), "limit": 0, "closed_idle": 0, "refused": 0, "closed_stalled": 0}
    connections = cast("Any", ClientConnections).collect(SimpleNamespace(**closed))
    batches = Progress()
    metrics.registry.register(batches)
    rows = [_of_pool(family) for family in families]
    for found in (*connections, *metrics.registry.collect()):
        if not found.name.startswith("process_"):
            labels = {label for sample in found.samples for label in sample.labels}
            rows.append(_metric(found.name, found.type, labels, found.documentation))
    return rows


def _thresholds() -> str:
    named = THRESHOLDS.items()
    values = ((f"`{name}`", f"{float(each):g} {each.unit}", each.bounds) for name, each in named)
    return _table(("threshold", "", "what it bounds"), values)


# Those that may have such tables.
PAGES: Final = sorted((ROOT / "docs").rglob("*.md"))
TABLES: Final[Mapping[str, Callable[[], str]]] = {
    "settings": _settings,
    "pools": lambda: _table(("field", "default", ""), _fields(PoolSettings)),
    "options": _options,
    "arguments": _arguments,
    "keys": _keys,
    "class-keys": lambda: _table(("key", "default", ""), _fields(ClassRules)),
    "refusals": _refusals,
    "metrics": _metrics,
    "thresholds": _thresholds,
}


def main() -> None:
    """Writes the pages."""
    for path in PAGES:
        page = path.read_text(encoding="utf-8")
        if (text := written(page)) != page:
            path.write_text(text, encoding="utf-8")
            print(path)


if __name__ == "__main__":
    main()
