"""Takes secrets out of text before it is stored or shown: tokens, keys, passwords, URLs with credentials, private key blocks.

Called by the evidence capture, before a log line or a comment enters a workflow history, and before anything is logged or sent to an
outside service. What merely *looks* guarded (`tokens: 5120`, `pad_token=0`, a commit, a UUID) is evidence and stays.
"""

from activities.redaction.keys import KEY_BYTES
from activities.redaction.redactor import Redacted, is_redacted, prepare, redact, redact_bytes, redact_part, redact_start
from activities.redaction.texts import redact_record, redact_value

__all__ = [
    "KEY_BYTES",
    "Redacted",
    "is_redacted",
    "prepare",
    "redact",
    "redact_bytes",
    "redact_part",
    "redact_record",
    "redact_start",
    "redact_value",
]
