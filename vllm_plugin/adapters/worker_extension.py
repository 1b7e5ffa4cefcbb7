"""Adds to vLLM's workers the calls that this package makes of them.

vLLM mixes this class into its worker class (`worker_extension_cls`), and the API server calls the
methods by their names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class WorkerCalls:
    """What vLLM mixes into the worker of each rank."""

    vllm_config: Any
    device: Any
    get_model: Callable[[], Any]

    def orch_attention_backends(self) -> list[str]:
        """Returns vLLM's names of the backends of this rank's layers, sorted.

        vLLM chooses them here when the model is loaded, by the hardware and by what is installed;
        no other process knows the result.
        """
        from vllm.config.vllm import get_layers_from_vllm_config
        from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase

        layers: dict[str, Any] = get_layers_from_vllm_config(
            self.vllm_config,
            AttentionLayerBase,
        )
        return sorted({str(layer.get_attn_backend().get_name()) for layer in layers.values()})

    def orch_parameters(self) -> tuple[int, int]:
        """Returns how many parameters this rank has, and their bytes."""
        parameters = list(self.get_model().parameters())
        return (
            sum(each.numel() for each in parameters),
            sum(each.numel() * each.element_size() for each in parameters),
        )

    def orch_warm_up(self) -> None:
        """Compiles what the first request with logprobs, or with those of its prompt, would
        compile while all others wait.

        vLLM compiles it for any number of rows at once, and anew for another width, type, or
        mode of gradients: all are those of a request.
        """
        import torch
        from vllm.v1.sample.sampler import Sampler

        width = self.vllm_config.model_config.get_vocab_size()
        with torch.inference_mode():
            logits = torch.zeros((1, width), device=self.device)
            token = torch.zeros(1, dtype=torch.int64, device=self.device)
            Sampler.gather_logprobs(Sampler.compute_logprobs(logits), 1, token)
