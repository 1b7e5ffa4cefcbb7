"""`orch key`: a new API key for a client, and its entry for the sidecar's file of keys."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Final

from orch_sidecar.auth.keys import RANDOM_BYTES, InvalidKeyFile, entry_of, new_key

_DESCRIPTION: Final = """A new API key for a client of a sidecar.

The key goes to stderr, its entry for the file of keys (api_keys_file) to stdout. Nothing is
stored: the key is shown this once, and the entry has its SHA-256 only. So

  orch key alice >> keys.yaml                  shows the key and adds the entry
  orch key alice >> keys.yaml 2> alice.key     leaves the key in a file"""


def main(words: list[str]) -> None:
    """Makes one key. Exits with 2 for bad usage."""
    parser = argparse.ArgumentParser(
        prog="orch key",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", help="of the client; each entry has a name of its own")
    parser.add_argument(
        "--class", dest="bulk", choices=["bulk"], help="serve no more than bulk requests with it"
    )
    parser.add_argument(
        "--concurrency", type=int, metavar="N", help="sequences of it at once, at most"
    )
    given = parser.parse_args(words)
    key = new_key(os.urandom(RANDOM_BYTES))
    try:
        entry = entry_of(key, given.name, bulk=bool(given.bulk), concurrency=given.concurrency)
    except InvalidKeyFile as wrong:
        parser.error(str(wrong).removeprefix("entry 1: "))
    sys.stdout.write(entry)
    sys.stdout.flush()  # before the key, where both go to one terminal
    sys.stderr.write(f"{key}\n")
