"""What k8s/cpu/ has otherwise than k8s/: the same cluster without a GPU, on a laptop.

Pure: text in, text out, so that comments stay. Each change names the text that it replaces; one
that no longer finds it is an error, so that the two cannot drift apart unseen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_ENGINES: Final = ("42-home.yaml", "52-cloud.yaml")
_PODS: Final = (*_ENGINES, "62-entry.yaml")
_CACHES: Final = ("40-home-models.yaml", "50-cloud-models.yaml")


class NotFound(ValueError):
    """A change names a text that is not in its file."""


@dataclass(frozen=True, slots=True)
class Change:
    """In each of `files`: every `old` becomes `new`."""

    files: tuple[str, ...]
    old: str
    new: str


CHANGES: Final = (
    Change(
        ("13-model.yaml",),
        "  model: Qwen/Qwen3-4B\n  served-name: qwen3-4b\n",
        "  model: HuggingFaceTB/SmolLM2-135M-Instruct\n  served-name: smollm2-135m\n",
    ),
    # 0.3 GB of weights. A laptop has one node, and no storage that several could share.
    Change(_CACHES, "storage: 30Gi", "storage: 2Gi"),
    Change(
        ("50-cloud-models.yaml",),
        "# One cache for all pods of the pool, wherever they are. If your storage class has no "
        "ReadWriteMany\n# (most block storage), change it to ReadWriteOnce: then all pods of the "
        "pool run on one node.\n",
        "# One cache for all pods of the pool, which run on one node.\n",
    ),
    Change(("50-cloud-models.yaml",), "[ReadWriteMany]", "[ReadWriteOnce]"),
    Change(_PODS, "image: vllm/vllm-openai:", "image: vllm/vllm-openai-cpu:"),
    Change(
        _PODS,
        """          env:
            # The image asks for all GPUs, and may get them where none was requested.
            - {name: NVIDIA_VISIBLE_DEVICES, value: void}
          resources:
""",
        "          resources:\n",
    ),
    Change(_PODS, "            - {name: NVIDIA_VISIBLE_DEVICES, value: void}\n", ""),
    Change(
        _ENGINES,
        """      tolerations:
        - {key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}
""",
        "",
    ),
    Change(
        _ENGINES,
        "            - --shutdown-timeout=20\n",
        """            - --shutdown-timeout=20
            # bfloat16 dies of an illegal instruction on CPUs with AMX; compiling takes a minute.
            - --dtype=float32
            - --enforce-eager
            - --max-model-len=2048
""",
    ),
    Change(
        ("52-cloud.yaml",),
        "            - --max-model-len=2048\n",
        "            - --max-model-len=2048\n            - --max-num-seqs=8\n",
    ),
    Change(
        _ENGINES,
        '            - {name: VLLM_NO_USAGE_STATS, value: "1"}\n',
        """            - {name: VLLM_NO_USAGE_STATS, value: "1"}
            # GiB. Two threads anywhere: bound to cores, both engines would take the same ones.
            - {name: VLLM_CPU_KVCACHE_SPACE, value: "1"}
            - {name: VLLM_CPU_OMP_THREADS_BIND, value: nobind}
            - {name: OMP_NUM_THREADS, value: "2"}
""",
    ),
    Change(
        _ENGINES,
        """            # Weights pass through memory on their way to the GPU; /dev/shm counts, too.
            requests: {cpu: "2", memory: 12Gi, nvidia.com/gpu: "1"}
            limits: {memory: 24Gi, nvidia.com/gpu: "1"}
""",
        """            # Measured: 2.6 GB with a smaller model, 1 GiB of it KV cache. All pods
            # together request 1.3 CPUs and 6.7 GiB: a node with 4 CPUs and 8 GB. An engine takes
            # all cores, and spins where it waits. A request is a share of them, too: with more of
            # it than the sidecar has, that one hardly runs, and streams stall.
            requests: {cpu: 100m, memory: 3Gi}
            limits: {memory: 6Gi}
""",
    ),
    Change(_PODS, "requests: {cpu: 250m, memory: 128Mi}", "requests: {cpu: 250m, memory: 96Mi}"),
    Change(_ENGINES, "sizeLimit: 20Gi", "sizeLimit: 2Gi"),
    Change(
        _ENGINES,
        "emptyDir: {medium: Memory, sizeLimit: 2Gi}",
        "emptyDir: {medium: Memory, sizeLimit: 512Mi}",
    ),
    Change(("52-cloud.yaml",), "an update needs a GPU to spare", "an update needs 3 GiB to spare"),
)


def variant(name: str, text: str) -> str:
    """The file of k8s/cpu/ for this file of k8s/. Raises NotFound."""
    changed = text
    for change in CHANGES:
        if name not in change.files:
            continue
        if change.old not in changed:
            raise NotFound(
                f"k8s/{name} does not hold this text, which cpu_variant.py changes:\n{change.old}"
            )
        changed = changed.replace(change.old, change.new)
    return (
        changed
        if changed == text
        else f"# From ../{name}, by generate.py: change that one.\n{changed}"
    )
