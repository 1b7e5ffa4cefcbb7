"""Makes the key with which an engine signs during its epoch, certified by an operator's key.

The operator's key is read from the file that ORCH_EVIDENCE_KEY names (PKCS#8 PEM, Ed25519), used
once, and not kept. Without one the key has no certificate: statements are then intact, but nobody
vouches for their signer. Imports `cryptography` on demand, which an engine that signs nothing does
not need.
"""

from __future__ import annotations

import json
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from vllm_plugin.contracts.statement import (
    CERTIFICATE_TYPE,
    Envelope,
    Signed,
    envelope,
    key_id,
    pae,
    to_base64,
)

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

KEY_VARIABLE: Final = "ORCH_EVIDENCE_KEY"

# An engine that runs for longer signs statements that no longer verify, until it is restarted.
CERTIFICATE_DAYS: Final = 90
_DAY_S: Final = 86_400


class InvalidOperatorKey(ValueError):
    """The operator's key cannot be used; the message names the file, the rule and the remedy."""


@dataclass(frozen=True, slots=True)
class EpochKey:
    """`public`: 32 bytes. `sign`: returns the signature of some bytes."""

    public: bytes
    sign: Callable[[bytes], bytes]
    certificate: Envelope | None

    @property
    def id(self) -> str:
        return key_id(self.public)


def operator_key_file(environ: Mapping[str, str]) -> Path | None:
    """Returns the file of the operator's key, None without one. An empty variable counts as unset.

    Raises InvalidOperatorKey if its key cannot be used.
    """
    given = environ.get(KEY_VARIABLE)
    if not given:
        return None
    path = Path(given)
    _load(path)
    return path


def load_library() -> None:
    """Imports what makes keys, which takes a tenth of a second. Raises ImportError."""
    import cryptography.hazmat.primitives.asymmetric.ed25519  # noqa: F401


def make_epoch_key(epoch: str, operator_key: Path | None, now_s: float) -> EpochKey:
    """Makes the key of an epoch that begins at `now_s` (Unix seconds).

    Raises InvalidOperatorKey, and without an operator's key ImportError where the package
    `cryptography` is missing.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private = Ed25519PrivateKey.generate()
    public = private.public_key().public_bytes_raw()
    certificate = None
    if operator_key is not None:
        certificate = certify(_load(operator_key), epoch, public, now_s)
    return EpochKey(public, private.sign, certificate)


def certify(operator: Ed25519PrivateKey, epoch: str, public: bytes, now_s: float) -> Envelope:
    """Returns the certificate of an epoch's public key, valid for CERTIFICATE_DAYS from now."""
    content: dict[str, Any] = {
        "type": CERTIFICATE_TYPE,
        "epoch": epoch,
        "public_key": to_base64(public),
        "not_before_s": int(now_s),
        "not_after_s": int(now_s) + CERTIFICATE_DAYS * _DAY_S,
    }
    payload = json.dumps(content, separators=(",", ":")).encode()
    issuer = key_id(operator.public_key().public_bytes_raw())
    signature = operator.sign(pae(CERTIFICATE_TYPE, payload))
    return envelope(Signed(CERTIFICATE_TYPE, payload, issuer, signature))


def _load(path: Path) -> Ed25519PrivateKey:
    def refused(rule: str) -> InvalidOperatorKey:
        return InvalidOperatorKey(f"{KEY_VARIABLE} {path}: {rule}")

    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
    except ImportError as error:
        raise refused(
            f"needs the package cryptography ({error}): install it, or unset {KEY_VARIABLE}"
        ) from None
    try:
        mode = path.stat().st_mode
        content = path.read_bytes()
    except OSError as error:
        raise refused(f"cannot be read: {error.strerror or error}") from None
    # A mounted Secret is readable by the group of the pod.
    if stat.S_IMODE(mode) & 0o027:
        raise refused(
            f"has mode {stat.S_IMODE(mode):04o}, must be closed to others: chmod 600, or for a "
            "mounted Secret defaultMode: 0440"
        )
    rule = (
        "must be an Ed25519 key without a password, as PKCS#8 PEM: `orch key --evidence` makes one"
    )
    try:
        key = load_pem_private_key(content, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise refused(rule) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise refused(rule)
    return key
