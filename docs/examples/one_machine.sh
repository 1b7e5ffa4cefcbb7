#!/bin/sh
# Starts an engine and a sidecar for the model $1 on this machine, as a compose file would without
# containers. The sidecar answers 503 until the engine is ready; Ctrl-C ends both.
#
#   sh docs/examples/one_machine.sh MODEL [PROFILE]
set -eu
export ORCH_PROFILE="${2:-cloud}"
engine_port="${ENGINE_PORT:-8000}"
orch engine "$1" --port "$engine_port" &
trap 'kill $! && wait' EXIT
orch sidecar --engine-url "http://127.0.0.1:$engine_port" --port "${PORT:-8080}"
