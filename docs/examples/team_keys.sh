#!/bin/sh
# Makes keys for a team in the file $1: two people, and a nightly job of bulk requests.
# The keys themselves are printed once, to standard error; the file has their digests.
set -eu
for name in alice bob; do
  echo "$name:" >&2
  orch key "$name" --requests-per-minute 600 >> "$1"
done
echo "nightly:" >&2
orch key nightly --class bulk --concurrency 4 >> "$1"
