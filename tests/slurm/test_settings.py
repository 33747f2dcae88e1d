"""Reading Slurm's settings, of every version."""

from datetime import timedelta

import pytest

from activities.slurm.scheduler import SchedulerUnreadable
from activities.slurm.settings import settings_from
from tests.slurm.recorded import recorded


def test_settings_of_22_05() -> None:
    settings = settings_from(recorded("22.05", "config.txt").decode())
    assert (settings.version, settings.cluster_name, settings.slurm_user) == ("22.05.8", "private", "root")
    assert settings.min_job_age == timedelta(minutes=5)
    assert settings.requeue_delay == timedelta(seconds=121)
    assert settings.controller_start == "2026-11-29T15:52:10"
    assert (settings.job_requeue, settings.accounting) == (True, False)


def test_settings_of_24_11() -> None:
    settings = settings_from(recorded("24.11", "config.txt").decode())
    assert (settings.version, settings.requeue_delay) == ("24.11.5", timedelta(seconds=121))


@pytest.mark.parametrize(
    ("lines", "seconds"),
    [
        ("AuthInfo = (null)", 121),
        ("AuthInfo = socket=/run/m,cred_expire=30", 31),
        ("AuthInfo = cred_expire=5", 6),
        ("AuthInfo = cred_expire=4", 121),
        ("AuthInfo = cred_expire=30\nSchedulerParameters = bf_interval=2,requeue_delay=5", 6),
        ("AuthInfo = (null)\nSchedulerParameters = requeue_delay=0", 1),
    ],
)
def test_the_requeue_delay(lines: str, seconds: int) -> None:
    settings = settings_from(f"SLURM_VERSION = 25.11.0\n{lines}\n")
    assert settings.requeue_delay == timedelta(seconds=seconds)


def test_what_is_not_a_configuration_is_unreadable() -> None:
    with pytest.raises(SchedulerUnreadable):
        settings_from("hello")
