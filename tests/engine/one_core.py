"""An engine on one core of a CPU, its model in the process of the engine's core, as on a GPU.

A CPU engine has one more process for its model, so that vLLM can give that one its OpenMP threads.
Both wait for each other by asking without a pause, up to a second after each step, and take two
cores for what one computes: four times the processor time of a few requests, and half as much
again for a start. With one thread there is nothing to give. What `orch up` starts is as vLLM has
it: `test_up`.
"""

from __future__ import annotations

from typing import Final

# On CPUs the second one has vLLM keep the model in the process of the engine's core, no more.
ENVIRON: Final = {"OMP_NUM_THREADS": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
