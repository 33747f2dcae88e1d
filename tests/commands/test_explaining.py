"""What people read of an error that nobody expected: one sentence, with what to do next."""

from temporalio.service import RPCError, RPCStatusCode

from workers.commands.errors import ExitCode
from workers.commands.explaining import explain


def test_a_refusal_of_temporals_names_who_can_tell_more() -> None:
    error = RPCError("Namespace nope is not found.", RPCStatusCode.NOT_FOUND, b"")
    assert explain(error) == (ExitCode.BAD, "Temporal said no (Namespace nope is not found); see `backstay doctor`")


def test_a_defect_of_ours_is_not_explained_away() -> None:
    assert explain(ZeroDivisionError()) is None
