"""How far Backstay may go for one job: the operator's mode, the job's own wish, and the bound between them; and as in which mode policy
judges. Pure."""

from activities.configuration import PolicySection, WatchSection
from activities.optin import opted_in
from activities.records import Job, Mode, OptIn

_ORDER = tuple(Mode)


def highest_mode(policy: PolicySection) -> Mode:
    """The most that a job's own comment may ask for: `policy.highest_mode`, and never less than what holds without one."""
    return max(policy.mode, policy.highest_mode, key=_ORDER.index)


def mode_for(opt_in: OptIn, policy: PolicySection) -> tuple[Mode, str | None]:
    """The mode that holds for a job, and a warning where its own wish was cut.

    A job may always ask for less than `policy.mode`. It may ask for more only up to `policy.highest_mode`: a new
    installation observes, and a comment alone never makes it act without a person.
    """
    highest = highest_mode(policy)
    wish = opt_in.mode
    if wish is None:
        return policy.mode, None
    if _ORDER.index(wish) > _ORDER.index(highest):
        return highest, f"the comment asks for mode {wish}, policy.highest_mode allows {highest}; that is what holds"
    return wish, None


def mode_now(job: Job, watch: WatchSection, policy: PolicySection) -> Mode:
    """The mode that holds for a fault of this job seen now, by what its comment says at this moment: a user who takes `backstay` out of it,
    or asks for less, is obeyed."""
    said = opted_in(job, watch)
    return mode_for(said, policy)[0] if said.opted_in else Mode.OBSERVE


def judged_as(mode: Mode | None) -> Mode | None:
    """The mode in which policy judges: what is recorded in `observe` is what would be done in `auto`, or it previews another policy.
    None, where nobody can act at all, stays None."""
    return Mode.AUTO if mode is Mode.OBSERVE else mode
