"""What `scontrol show config` says of the settings that matter here, of every version from 22.05 on. Pure; called by `commands.py`."""

import re
from collections.abc import Mapping
from datetime import timedelta

from activities.slurm.scheduler import SchedulerSettings, SchedulerUnreadable

_SETTING = re.compile(r"^(\w+)\s*= (.*)$", re.MULTILINE)
_CRED_EXPIRE_DEFAULT = 120  # slurm.conf(5), AuthInfo
_CRED_EXPIRE_LEAST = 5  # less is "AuthInfo=cred_expire=4 invalid" in slurmctld's log, and the default counts; measured on 22.05.8


def settings_from(text: str) -> SchedulerSettings:
    """What `scontrol show config` says. Raises `SchedulerUnreadable`."""
    values = {name: "" if value.strip() in ("(null)", "N/A") else value.strip() for name, value in _SETTING.findall(text)}
    if "SLURM_VERSION" not in values:
        raise SchedulerUnreadable(f"scontrol show config printed no SLURM_VERSION; it begins {text[:80]!r}")
    return SchedulerSettings(
        version=values["SLURM_VERSION"],
        cluster_name=values.get("ClusterName", ""),
        min_job_age=_seconds(values.get("MinJobAge")),
        requeue_delay=_requeue_delay(values),
        job_requeue=_yes(values.get("JobRequeue")),
        slurm_user=values.get("SlurmUser", "").partition("(")[0],
        accounting=_accounting(values.get("AccountingStorageType")),
        controller_start=values.get("BOOT_TIME", ""),
    )


def _requeue_delay(values: Mapping[str, str]) -> timedelta:
    """batch_requeue_fini() (job_mgr.c): now + cred_expire + 1; from 25.11 on SchedulerParameters=requeue_delay goes first."""
    stated = _option(values.get("SchedulerParameters"), "requeue_delay")
    if stated is None:
        stated = _option(values.get("AuthInfo"), "cred_expire")
        stated = None if stated is not None and stated < _CRED_EXPIRE_LEAST else stated
    return timedelta(seconds=(_CRED_EXPIRE_DEFAULT if stated is None else stated) + 1)


def _option(options: str | None, name: str) -> int | None:
    found = re.search(rf"(?:^|,)\s*{name}=(\d+)", options or "")
    return int(found[1]) if found else None


def _accounting(plugin: str | None) -> bool | None:
    return None if plugin is None else plugin not in ("", "accounting_storage/none")


def _yes(value: str | None) -> bool | None:
    return {"0": False, "1": True, "No": False, "Yes": True}.get(value) if value is not None else None


def _seconds(value: str | None) -> timedelta | None:
    number = _leading_number(value)
    return None if number is None else timedelta(seconds=number)


def _leading_number(value: str | None) -> int | None:
    found = re.match(r"\d+", value or "")
    return int(found[0]) if found else None
