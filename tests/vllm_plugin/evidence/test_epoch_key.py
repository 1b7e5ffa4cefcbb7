"""The key of an epoch: which operator's keys are accepted, and what they certify."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
)

from vllm_plugin.contracts.statement import CERTIFICATE_TYPE, from_base64, key_id, parse_envelope
from vllm_plugin.evidence.epoch_key import (
    CERTIFICATE_DAYS,
    KEY_VARIABLE,
    InvalidOperatorKey,
    make_epoch_key,
    operator_key_file,
)


def write(
    path: Path, key: object, mode: int = 0o600, encryption: KeySerializationEncryption | None = None
) -> Path:
    pem = key.private_bytes(  # type: ignore[attr-defined]
        Encoding.PEM, PrivateFormat.PKCS8, encryption or NoEncryption()
    )
    path.write_bytes(pem)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o440])
def test_key_is_certified_by_the_operators(tmp_path: Path, mode: int) -> None:
    operator = Ed25519PrivateKey.generate()
    path = write(tmp_path / "key.pem", operator, mode)
    assert operator_key_file({KEY_VARIABLE: str(path)}) == path
    key = make_epoch_key("e1", path, 1000.7)
    assert key.certificate is not None
    signed = parse_envelope(key.certificate, CERTIFICATE_TYPE)
    operator.public_key().verify(signed.signature, signed.pae)
    content = json.loads(signed.payload)
    assert from_base64("public_key", content["public_key"]) == key.public
    assert content["epoch"] == "e1"
    assert content["not_before_s"] == 1000
    assert content["not_after_s"] - content["not_before_s"] == CERTIFICATE_DAYS * 86_400
    assert signed.key_id == key_id(operator.public_key().public_bytes_raw()) != key.id


def test_without_an_operators_key_there_is_no_certificate() -> None:
    assert operator_key_file({}) is operator_key_file({KEY_VARIABLE: ""}) is None
    first, second = (make_epoch_key("e1", None, 0.0) for _ in range(2))
    assert first.certificate is None
    assert first.public != second.public
    assert len(first.sign(b"x")) == 64


def test_key_that_cannot_be_used_is_refused_with_the_rule(tmp_path: Path) -> None:
    ed25519 = Ed25519PrivateKey.generate()
    noise = tmp_path / "noise"
    noise.write_text("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")
    noise.chmod(0o600)
    refused = {
        write(tmp_path / "open", ed25519, 0o644): "has mode 0644, must be closed to others",
        write(tmp_path / "writable", ed25519, 0o660): "has mode 0660, must be closed to others",
        write(tmp_path / "ec", generate_private_key(SECP256R1())): "must be an Ed25519 key",
        write(
            tmp_path / "locked", ed25519, encryption=BestAvailableEncryption(b"secret")
        ): "must be an Ed25519 key without a password",
        noise: "must be an Ed25519 key",
        tmp_path / "nowhere": "cannot be read: No such file",
    }
    for path, message in refused.items():
        with pytest.raises(InvalidOperatorKey, match=f"^ORCH_EVIDENCE_KEY {path}: .*{message}"):
            operator_key_file({KEY_VARIABLE: str(path)})


def test_operators_key_without_the_library_is_refused_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "key.pem", Ed25519PrivateKey.generate())
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    with pytest.raises(InvalidOperatorKey, match=r"needs the package cryptography .*: install it"):
        operator_key_file({KEY_VARIABLE: str(path)})
