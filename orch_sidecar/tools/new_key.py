"""`orch key`: generates an API key for a client, or an operator's key that vouches for engines."""

from __future__ import annotations

import argparse
import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from orch_sidecar.auth.keys import RANDOM_BYTES, InvalidKeyFile, entry_of, new_key
from orch_sidecar.tools.arguments import TextParser, count
from orch_sidecar.tools.facts.signing import files

_DESCRIPTION: Final = """Generates an API key for a client of a sidecar.

The key is printed on stderr, its entry for the key file (api_keys_file) on stdout. Nothing is
stored, and the entry contains only the key's SHA-256. For example:

  orch key alice >> keys.yaml                  appends the entry and shows the key
  orch key alice >> keys.yaml 2> alice.key     writes the key to a file

With --evidence, generates an operator's key (Ed25519), with which engines prove that they measured
what they signed. The private key is written to FILE, which must not exist, the entry for the file
of trusted keys (orch facts verify --trusted) on stdout. For example:

  orch key lab-2026 --evidence operator.pem >> trusted.yaml"""

_DAYS: Final = 365
# What a key may say or read besides sending requests.
_ROLES: Final = {
    "sidecar": "of a parent sidecar, which may claim slots",
    "gateway": "of a gateway, whose fairness ids count",
    "metrics": "of a reader of what concerns all clients, as Prometheus",
}


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    found = TextParser(prog="orch key", description=_DESCRIPTION)
    found.add_argument("name", help="of the client or operator, unique in its file")
    found.add_argument(
        "--class", dest="bulk", choices=["bulk"], help="serve all its requests as bulk"
    )
    found.add_argument(
        "--concurrency", type=int, metavar="N", help="maximum sequences of the client at once"
    )
    found.add_argument(
        "--weight", type=float, metavar="W",
        help="share of the slots beside other clients of its class; default: 1",
    )  # fmt: skip
    for unit in ("tokens", "requests"):
        found.add_argument(
            f"--{unit}-per-minute", type=int, metavar="N", help=f"budget of {unit} of the client"
        )
    for role, text in _ROLES.items():
        found.add_argument(f"--{role}", action="store_const", const=True, help=text)
    found.add_argument(
        "--share-cache", metavar="GROUP",
        help="share the engines' prefix cache with the keys of this group; default: with none",
    )  # fmt: skip
    found.add_argument(
        "--evidence", type=Path, metavar="FILE", help="generate an operator's key in this file"
    )
    found.add_argument(
        "--days", type=count, metavar="N",
        help=f"how long an operator's key is valid; default: {_DAYS}",
    )  # fmt: skip
    return found


def main(arguments: list[str]) -> None:
    """Prints a new key and its entry; exits with 2 for bad usage."""
    usage = parser()
    options = usage.parse_args(arguments)
    names = ("concurrency", "weight", "tokens_per_minute", "requests_per_minute", "share_cache")
    fields = {name: getattr(options, name) for name in (*names, *_ROLES)}
    if options.evidence is not None:
        if options.bulk is not None or any(value is not None for value in fields.values()):
            usage.error("--evidence: class, limits, weight, roles and groups are of API keys")
        _operator_key(usage, options.name, options.evidence, options.days or _DAYS)
        return
    if options.days is not None:
        usage.error("--days: API keys have no end; it needs --evidence")
    # Standard error is closed. The key is printed there: it would be lost, and so would a message.
    if sys.stderr is None:
        sys.exit(2)
    key = new_key(os.urandom(RANDOM_BYTES))
    try:
        entry = entry_of(key, options.name, bulk=bool(options.bulk), **fields)
    except InvalidKeyFile as error:
        usage.error(str(error).removeprefix("entry 1: "))
    sys.stderr.write(f"{key}\n")  # first: without it the entry would let nobody in
    sys.stderr.flush()
    sys.stdout.write(entry)


def _operator_key(usage: argparse.ArgumentParser, name: str, path: Path, days: int) -> None:
    """Writes a new private key to a file, and prints the entry of its public part."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
    )

    now = datetime.now(UTC).replace(microsecond=0)
    try:
        end = now + timedelta(days=days)
    except OverflowError:
        usage.error(f"--days {days}: the key must end before the year 10000: give fewer days")
    private = Ed25519PrivateKey.generate()
    content = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        usage.error(f"--evidence {path}: {error.strerror}: it must be a new file")
    with os.fdopen(file, "wb") as opened:
        opened.write(content)
    public = private.public_key().public_bytes_raw()
    sys.stdout.write(files.entry_of(name, public, now, end))
