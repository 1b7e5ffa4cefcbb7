"""Adds to vLLM's workers a call that returns the attention backends of the model's layers.

vLLM chooses a backend for each layer in the worker, when the model is loaded, by the hardware and
by what is installed; no other process knows the result. vLLM mixes this class into its worker
class (`worker_extension_cls`), and the API server calls the method by its name.
"""

from __future__ import annotations

from typing import Any


class AttentionBackends:
    """What vLLM mixes into the worker of each rank."""

    vllm_config: Any

    def orch_attention_backends(self) -> list[str]:
        """Returns vLLM's names of the backends of this rank's layers, sorted."""
        from vllm.config.vllm import get_layers_from_vllm_config
        from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase

        layers: dict[str, Any] = get_layers_from_vllm_config(
            self.vllm_config,
            AttentionLayerBase,
        )
        return sorted({str(layer.get_attn_backend().get_name()) for layer in layers.values()})
