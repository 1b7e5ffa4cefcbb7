"""Decides what the evidence of a row is worth: `docs/reference/evidence.md` has the verdicts.

Pure. A host that holds a trusted key can still state anything: what is verified is who stated it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from orch_sidecar.tools.facts.labels.documents import parse_json, parsed_as
from orch_sidecar.tools.facts.labels.recorded import RecordedRun
from orch_sidecar.tools.facts.labels.thresholds import FUTURE_S
from orch_sidecar.tools.facts.signing.files import EvidenceFile, TrustedKeys, digest, named_by
from orch_sidecar.tools.facts.signing.proof import Proof, prove
from orch_sidecar.tools.facts.signing.recompute import contradictions, differences
from orch_sidecar.tools.facts.tables.notes import LOADED
from orch_sidecar.tools.facts.tables.row import TRACES, Row
from orch_sidecar.tools.facts.tables.table import LocatedRow, Record, parse_row
from vllm_plugin.contracts.lease_protocol import timestamp


class Verdict(StrEnum):
    """What the evidence of a row is worth."""

    VERIFIED = "verified"
    SIGNER_UNKNOWN = "intact, signer unknown"
    NOT_FRESH = "not fresh"
    UNVERIFIED = "unverified"
    FAILED = "failed"


@dataclass(frozen=True)
class Verified:
    """The verdict on one row. `evidence`: the digest of its file, None without one. `row`, `proof`:
    what the evidence is of, and what was signed; None where it does not hold."""

    verdict: Verdict
    reasons: Sequence[str] = ()
    evidence: str | None = None
    row: Row | None = None
    proof: Proof | None = None

    @property
    def signer(self) -> str | None:
        """The name of the trusted key that certified the engine's."""
        return None if self.proof is None else self.proof.signer

    def repeats(self, other: Verified) -> str | None:
        """Returns what of another row's run it has, too: one run makes one row."""
        if self.proof is None or other.proof is None:
            return None
        mine, theirs = self.proof.before, other.proof.before
        if mine.nonce is not None and mine.nonce == theirs.nonce:
            return "the nonce"
        here, there = self.proof.leaves, other.proof.leaves
        apart = here[0].number > there[-1].number or there[0].number > here[-1].number
        return "the engine's sequences" if mine.epoch == theirs.epoch and not apart else None


# Returns the content of an evidence file by its digest, None where there is none.
ReadEvidence = Callable[[str], bytes | None]


@dataclass(frozen=True)
class Verifier:
    """Verifies rows. `now_s`: its clock; nothing was signed after it."""

    read: ReadEvidence
    trusted: TrustedKeys
    now_s: float = math.inf

    def rows(self, rows: Iterable[LocatedRow]) -> dict[Row, Verified]:
        """Returns the verdict on each row; a copy of one in another table is the same row."""
        verdicts: dict[Row, Verified] = {}
        places: dict[Row, str] = {}
        for located in rows:
            if located.row in verdicts:
                continue
            verdict = self.row(located.row)
            for earlier, other in verdicts.items():
                if (repeated := verdict.repeats(other)) is not None:
                    reason = f"it has {repeated} of {places[earlier]}: one run makes one row"
                    verdict = replace(verdict, verdict=Verdict.FAILED, reasons=(reason,))
                    break
            verdicts[located.row], places[located.row] = verdict, located.place
        return verdicts

    def row(self, row: Row) -> Verified:
        """Returns the verdict on a row, by the evidence that it names."""
        without, name = named_by(row)
        if name is not None:
            return self.evidence(name, without)
        if row.source_tag.startswith(TRACES):
            return Verified(Verdict.NOT_FRESH, ("made of traces, which nobody signed for a nonce",))
        return Verified(Verdict.UNVERIFIED, ("the row has no evidence",))

    def evidence(self, name: str, row: Row | None = None) -> Verified:
        """Returns the verdict on an evidence file of that name, without its suffix. `row`: the one
        that names it, without its note; None for the one in the file."""
        content = self.read(name)
        try:
            if content is None:
                raise ValueError(f"{name}.json is not beside the table")
            if digest(content) != name:
                own = f"the SHA-256 of the file is {digest(content)}"
                raise ValueError(f"{own}, its name is {name:.80}")
            evidence = parsed_as(EvidenceFile, parse_json(content, "the file: "), "the file: ")
            stated = parse_row(Record("evidence", 1, tuple(evidence.client_measured.row)))
            if not isinstance(stated, Row):
                raise ValueError(f"the row in the evidence is not valid: {stated[0].text}")
            if row is not None and row != stated:
                written = "it is written otherwise in the table and in the evidence"
                raise ValueError(next(differences(row, stated), written))
            proof = prove(evidence.signed, self.trusted)
            if proof.after.wall_s > self.now_s + FUTURE_S:
                signed, now = map(timestamp, (proof.after.wall_s, self.now_s))
                raise ValueError(f"it was signed at {signed}, and the checker's clock is at {now}")
            run = parsed_as(RecordedRun, evidence.client_measured.result, "the client's result: ")
            return _judged(name, proof, stated, run)
        except ValueError as error:
            return Verified(Verdict.FAILED, (str(error),), name)


def _judged(name: str, proof: Proof, row: Row, run: RecordedRun) -> Verified:
    weights, settings = proof.after.digests.get("weights", {}), proof.after.snapshot.conditions
    rules = (
        *((Verdict.FAILED, True, reason) for reason in contradictions(row, run, proof)),
        (Verdict.SIGNER_UNKNOWN, not proof.signer, "no trusted key certified the engine's"),
        (Verdict.NOT_FRESH, not proof.before.nonce, "the statements have no nonce"),
        # It is not known which model ran.
        (Verdict.UNVERIFIED, weights.get("sha256") is None,
         f"the engine signed no digest of its weights: {weights.get('missing') or 'none'}"),
        (Verdict.UNVERIFIED, LOADED not in settings,
         "the engine signed no digest of the model that it loaded"),
    )  # fmt: skip
    found = [(verdict, reason) for verdict, applies, reason in rules if applies]
    worst = found[0][0] if found else Verdict.VERIFIED
    return Verified(worst, tuple(why for each, why in found if each is worst), name, row, proof)
