"""Redaction of records and of JSON: every text at any depth, a text under a secret's name, and nothing else."""

from activities.records import Attribution, Diagnosis, Domain, Judgement, PrimaryEvent, SignalSource, Suspect, SymptomKind
from activities.redaction import redact_record, redact_value
from tests.builders import NOON, a_job

TOKEN = "hf_" + "Zx9" * 12


def test_a_record_loses_the_secrets_of_all_its_texts_and_nothing_else() -> None:
    """What a step returns stands in the workflow history for as long as the server keeps it."""
    secret = "https://alice:hunter22@registry.example/v2"
    primary = PrimaryEvent(source=SignalSource.LOG, text=f"cannot pull from {secret}", line=7, node="node-001", at=NOON)
    diagnosis = Diagnosis(
        domain=Domain.SYSTEM_SOFTWARE, cause="x", confidence=0.5, primary=primary, lines=(secret,), summary=f"failed: {secret}"
    )
    suspect = Suspect(node="node-001", confidence=0.5, because=(secret,))
    judgement = Judgement(symptom=SymptomKind.CRASH, diagnosis=diagnosis, attribution=Attribution(suspects=(suspect,)))
    left = redact_record(judgement)
    assert "hunter22" not in left.model_dump_json()
    assert left.model_dump_json().count("[redacted: URL credentials]") == 4
    assert left.diagnosis.primary is not None
    assert (left.diagnosis.domain, left.diagnosis.primary.at, left.symptom) == (Domain.SYSTEM_SOFTWARE, NOON, SymptomKind.CRASH)


def test_texts_of_json_go_at_any_depth_and_by_the_name_they_have() -> None:
    value = {"a": [{"b": (f"x {TOKEN}", 7)}], "password": "hunter22", "accessToken": "opaque-1-value", "tokens": 5120, "token": None}
    left = redact_value(value)
    assert left["a"] == [{"b": ("x [redacted: Hugging Face token]", 7)}]
    assert "hunter22" not in left["password"]
    assert "opaque" not in left["accessToken"]
    assert (left["tokens"], left["token"]) == (5120, None)
    assert redact_value(left) == left


def test_what_holds_no_secret_is_given_back_as_it_is() -> None:
    value = {"key": {"cluster": "alpha", "job_id": "17"}, "digest": "0123456789ab", "sha256": "0123456789abcdef" * 4}
    assert redact_value(value) is value
    job = a_job(name="train")
    assert redact_record(job) is job
