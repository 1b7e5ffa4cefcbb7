#!/bin/sh
# Starts an engine and a sidecar for the model $1 on this machine, as a compose file would without
# containers. The sidecar answers 503 until the engine is ready; Ctrl-C ends both: first the sidecar,
# which lets running answers end. A second Ctrl-C cuts them.
#
#   sh docs/examples/one_machine.sh MODEL [PROFILE]
set -u
export ORCH_PROFILE="${2:-cloud}"
engine_port="${ENGINE_PORT:-8000}"
engine=
end() {
  trap 'kill $!' INT TERM HUP # $! is the sidecar: it was started last
  kill $! 2>/dev/null && wait $!
  kill $engine 2>/dev/null && wait $engine
}
trap end EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP
# In sessions of their own: Ctrl-C reaches this shell alone.
setsid orch engine "$1" --port "$engine_port" &
engine=$!
setsid orch sidecar --engine-url "http://127.0.0.1:$engine_port" --port "${PORT:-8080}" &
wait $!
