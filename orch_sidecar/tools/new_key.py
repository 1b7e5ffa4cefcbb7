"""`orch key`: generates an API key for a client, and its entry for the sidecar's key file."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Final

from orch_sidecar.auth.keys import RANDOM_BYTES, InvalidKeyFile, entry_of, new_key

_DESCRIPTION: Final = """Generates an API key for a client of a sidecar.

The key is printed on stderr, its entry for the key file (api_keys_file) on stdout. Nothing is
stored, and the entry contains only the key's SHA-256. For example:

  orch key alice >> keys.yaml                  appends the entry and shows the key
  orch key alice >> keys.yaml 2> alice.key     writes the key to a file"""


def main(arguments: list[str]) -> None:
    """Prints a new key and its entry; exits with 2 for bad usage."""
    parser = argparse.ArgumentParser(
        prog="orch key",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", help="of the client, unique in the key file")
    parser.add_argument(
        "--class", dest="bulk", choices=["bulk"], help="serve all its requests as bulk"
    )
    parser.add_argument(
        "--concurrency", type=int, metavar="N", help="maximum sequences of the client at once"
    )
    options = parser.parse_args(arguments)
    key = new_key(os.urandom(RANDOM_BYTES))
    try:
        entry = entry_of(
            key, options.name, bulk=bool(options.bulk), concurrency=options.concurrency
        )
    except InvalidKeyFile as error:
        parser.error(str(error).removeprefix("entry 1: "))
    sys.stdout.write(entry)
    sys.stdout.flush()  # keeps the order on a terminal
    sys.stderr.write(f"{key}\n")
