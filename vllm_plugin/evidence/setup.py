"""Creates what signs statements about an engine, from vLLM's final configuration."""

from __future__ import annotations

import logging
import os
import time
from typing import Any

from vllm_plugin.contracts.lease_protocol import timestamp
from vllm_plugin.evidence.chains import Evidence
from vllm_plugin.evidence.digests import Digests
from vllm_plugin.evidence.epoch_key import make_epoch_key, operator_key_file
from vllm_plugin.state.engine_state import EngineState

logger = logging.getLogger("vllm.orch")


def make_evidence(vllm_config: Any, engine_state: EngineState) -> Evidence:
    """Creates the evidence of an engine.

    With an operator's key, the key of the epoch is made and certified now, without one for the
    first statement. Raises InvalidOperatorKey.
    """

    def document(at_s: float) -> dict[str, Any]:
        observed = {"observed_at": timestamp(at_s), "age_ms": 0}
        return engine_state.document(None, at_s) | observed

    model, epoch = vllm_config.model_config, engine_state.facts.epoch
    digests = Digests(str(model.model), model.revision, vllm_config.load_config.download_dir)
    digests.start()
    operator_key = operator_key_file(os.environ)
    evidence = Evidence(
        epoch,
        document,
        digests.document,
        lambda: make_epoch_key(epoch, operator_key, time.time()),
    )
    if operator_key is not None:
        logger.info("orch: statements are signed with the key %s", evidence.key.id)
    return evidence
