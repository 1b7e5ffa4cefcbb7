"""Assigns sampled stacks to components of a relay. Pure.

py-spy (``record --native --format raw``) prints a line per stack, ``frame;frame;... count``,
outermost frame first, each frame ``name (file:line)`` or ``name (library)``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

KERNEL, WAITING = "kernel", "waiting for a lock"
OTHER, MEMORY = "interpreter and the rest", "memory and garbage collection"
JSON, LOOP = "JSON", "event loop (uvloop, libuv, asyncio)"
PARSER, SERVER = "httptools: HTTP parser", "aiohttp: server, multidict, yarl"
TRACING = "OpenTelemetry's SDK and exporter"
OURS = (
    "wire",
    "proxy",
    "api",
    "auth",
    "admission",
    "pools",
    "coalescing",
    "observability/otlp",
    "observability",
    "engine_state",
    "control",
    "app",
)
COMPONENTS = (KERNEL, LOOP, PARSER, SERVER, *OURS, JSON, TRACING, MEMORY, OTHER)
"""The table's rows, from the outside to the inside."""

_SYSTEM_CALLS = re.compile(
    r"(__)?(write|read)v?|(send|recv)(to|from|msg)?|epoll_\w+|accept4|close|connect|socket|syscall"
    r"|poll|select|clock_nanosleep"
)
_WAITING = re.compile(r"pthread_cond_(timed)?wait|futex|PyThread_acquire_lock_timed|sem_\w*wait")
_ALLOCATION = re.compile(
    r"malloc|calloc|realloc|_int_free|^c?free$|gc_collect|deduce_unreachable|subtract_refs"
    r"|visit_(decref|reachable)|update_refs|move_unreachable"
)
_FILES = (
    (PARSER, re.compile(r"_http_parser|httptools|llhttp|_find_header|_http_writer")),
    (SERVER, re.compile(r"/aiohttp/|multidict|yarl|_helpers_c|propcache|hashtable\.h")),
    (LOOP, re.compile(r"uvloop|\bloop\.c|/asyncio/|_asynciomodule")),
    (LOOP, re.compile(r"\b(core|stream|linux|tcp|udp|queue)\.[ch]:")),  # libuv
)
_PACKAGE = re.compile(rf"orch_sidecar/({'|'.join(OURS)})/")
_WHOLE_STACK = (
    (TRACING, re.compile(r"/(opentelemetry|protobuf|urllib3|requests)/|_message\.abi3")),
    (JSON, re.compile(r"/json/|_json\.c|orjson|msgspec")),
)
"""Whatever these call is theirs: a hook of the JSON reader is part of reading JSON."""


def component(stack: str) -> str:
    """The component of a stack's innermost frame that belongs to one."""
    frames = stack.split(";")
    if any(_WAITING.match(frame) for frame in frames[-4:]):
        return WAITING
    name, _, place = frames[-1].rpartition(" (")
    if "libc.so" in place and _SYSTEM_CALLS.fullmatch(name):
        return KERNEL
    for whole, pattern in _WHOLE_STACK:
        if pattern.search(stack):
            return whole
    if _ALLOCATION.search(name):
        return MEMORY
    for frame in reversed(frames):
        place = frame.rpartition(" (")[2]
        if ours := _PACKAGE.search(place):
            return ours[1]
        for found, pattern in _FILES:
            if pattern.search(place):
                return found
    return OTHER


def fold(lines: Iterable[str]) -> Counter[str]:
    """Samples by component."""
    samples: Counter[str] = Counter()
    for line in lines:
        stack, _, count = line.rstrip().rpartition(" ")
        if stack:
            samples[component(stack)] += int(count)
    return samples


def shares_of_user_time(samples: Counter[str]) -> dict[str, float]:
    """Shares of all but the kernel and waiting.

    The kernel's share comes from the process's accounting instead: a process that waits for a
    core, mostly at the end of a write that woke another one, is sampled like one that runs.
    """
    total = user_samples(samples)
    return {c: samples[c] / total for c in COMPONENTS if c != KERNEL and samples[c] and total}


def user_samples(samples: Counter[str]) -> int:
    """How many samples fell on the program itself."""
    return samples.total() - samples[KERNEL] - samples[WAITING]


def innermost(lines: Sequence[str], most: int = 40) -> list[tuple[str, int]]:
    """The functions of our packages that are innermost in most samples outside the kernel."""
    found: Counter[str] = Counter()
    for line in lines:
        stack, _, count = line.rstrip().rpartition(" ")
        if not stack or component(stack) in (KERNEL, WAITING):
            continue
        ours = [f for f in stack.split(";") if _PACKAGE.search(f)]
        if ours:
            name, _, place = ours[-1].rpartition(" (")
            found[f"{place.partition(':')[0].partition('orch_sidecar/')[2]} {name}"] += int(count)
    return found.most_common(most)
