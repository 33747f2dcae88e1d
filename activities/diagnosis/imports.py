"""Rules for what could not be imported or loaded: missing, too old, not built, or built for something else.

Each is a function from the context to another cause, with the reason; refine.py lists them by the causes they look at. Pure."""

import re

from activities.diagnosis.context import Context, Refined

_NO_CODE = re.compile(r"(?:CUDA|HIP) error: (?:invalid device function|no kernel image is available)")


def no_code_for_device(context: Context) -> Refined | None:
    """The program's own kernels were built for other devices; what NCCL says of itself is another matter."""
    if not _NO_CODE.search(context.primary.text) or "NCCL" in context.primary.text:
        return None
    return Refined("import_error_abi_mismatch", 0.85, "what is installed holds no code for this GPU: it was built for others")


_NO_MODULE = re.compile(r"No module named '?([\w.-]+)")
_NO_NAME = re.compile(r"cannot import name '?(\w+)'? from '?([\w.]+)")


def failed(context: Context) -> Refined:
    """Why an import failed: one word of the vocabulary stands for what is missing, too old, not built and built for another version."""
    text = context.primary.text
    if found := _NO_MODULE.search(text):
        why = f"no module named {found[1].rstrip('.')} is installed for this Python"
    elif "circular import" in text:
        why = "two modules import each other (circular import)"
    elif found := _NO_NAME.search(text):
        why = f"{found[2]} has no {found[1]} in the version that is installed"
    elif context.primary.signature == "extension_not_built":
        why = "an extension could not be built on the node"
    else:
        why = "a binary does not fit what is installed beside it: it was built for another version"
    return Refined("import_error_abi_mismatch", min(0.97, context.primary.weight + (0.03 if context.same else 0.0)), why)
