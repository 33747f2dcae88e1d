"""What a job's comment says: every form Slurm's quoting leaves, and garbled ones, which cost a warning only."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.configuration import WatchSection
from activities.optin import opted_in, read_comment
from activities.records import Mode, OptIn
from tests.builders import a_job

PATTERN = r"it (?P<iteration>\d{1,9}), loss=(?P<loss>\S+)"
FULL = OptIn(opted_in=True, mode=Mode.APPROVE, checkpoints="/shared/run1/ckpt", log="/shared/run1/%j.log", progress_pattern=PATTERN)


@pytest.mark.parametrize(
    "comment",
    [
        f"backstay:mode=approve,checkpoints=/shared/run1/ckpt,log=/shared/run1/%j.log,progress={PATTERN}",
        f"backstay:mode=approve,progress={PATTERN},checkpoints=/shared/run1/ckpt,log=/shared/run1/%j.log; other=1",
        f"team=x; backstay: mode=approve, checkpoints=/shared/run1/ckpt, log=/shared/run1/%j.log, progress={PATTERN}",
        json.dumps(
            {"backstay": {"mode": "approve", "checkpoints": "/shared/run1/ckpt", "log": "/shared/run1/%j.log", "progress": PATTERN}, "a": 1}
        ),
        "{a:1,backstay:{mode:approve,checkpoints:/shared/run1/ckpt,log:/shared/run1/%j.log,progress:" + PATTERN + "}}",
        "{'backstay': {'mode': 'approve', 'checkpoints': '/shared/run1/ckpt', 'log': '/shared/run1/%j.log', 'progress': '"
        + PATTERN
        + "'}}",
    ],
)
def test_the_full_story_in_each_form(comment: str) -> None:
    assert read_comment(comment) == FULL


@pytest.mark.parametrize(
    ("comment", "mode"),
    [
        ("backstay", None),
        ("Backstay", None),
        ("project-7 backstay", None),
        ("foo; backstay:mode=auto", Mode.AUTO),
        ("backstay:mode=observe;bar", Mode.OBSERVE),
        ("backstay:approve", Mode.APPROVE),
        ("backstay=auto", Mode.AUTO),
        ("backstay mode=auto", Mode.AUTO),
        ("backstay,mode=auto", Mode.AUTO),
        ("backstay:on", None),
        ('{"backstay": {}}', None),
        ('{"backstay": true}', None),
        ('{"backstay": "auto"}', Mode.AUTO),
        ('note {"x": {"y": 1}} and {"backstay": {"mode": "AUTO"}}', Mode.AUTO),
        ("{backstay:{mode:approve}}", Mode.APPROVE),
        ("{backstay:true}", None),
    ],
)
def test_short_forms_and_other_tools_text_around_them(comment: str, mode: Mode | None) -> None:
    assert read_comment(comment) == OptIn(opted_in=True, mode=mode)


@pytest.mark.parametrize(
    "comment",
    [
        "", "hello", "no-backstay", "my-backstay-job", "/home/backstay/run", "backstay/run", "backstays", "backstay:off", "backstay=no",
        "backstay:mode=none", '{"backstay": false}', '{"backstay": null}', '{"note": "nothing"}', "backstay.example.org",
    ],
)  # fmt: skip
def test_what_does_not_opt_in(comment: str) -> None:
    assert read_comment(comment) == OptIn()


@pytest.mark.parametrize(
    ("comment", "place", "mend"),
    [
        ("backstay:mode=aprove", "mode 'aprove'", "did you mean 'approve'?"),
        ("backstay:mode=yolo", "mode 'yolo'", "the modes are observe, approve, auto"),
        ("backstay:mod=auto", "key 'mod'", "did you mean 'mode'?"),
        ("backstay:checkpoint_dir=/x", "key 'checkpoint_dir'", "did you mean 'checkpoints'?"),
        ("backstay:zzz=1", "key 'zzz'", "the keys are mode, checkpoints, log, dumps, progress"),
        ("backstay:checkpoints=$SCRATCH/x", "checkpoints", "write the full path"),
        ("backstay:log=~/x", "log", "write the full path"),
        ("backstay:checkpoints=", "checkpoints is empty", "/full/path"),
        ("backstay:progress=step (\\d+)", "progress pattern", "(?P<iteration>"),
        ("backstay:mode=auto;checkpoints=/x", "checkpoints= behind a semicolon", "by commas alone"),
        ("backstay:mode=auto checkpoints=/x", "checkpoints= behind a semicolon or a space", "by commas alone"),
        (f"backstay:progress={PATTERN}; log=/x", "log= behind", "by commas alone"),
        ("backstay:mode=auto progress=x", "progress= behind", "by commas alone"),
        ('{"backstay": {"mode": "auto"', "brace", "close it"),
        ('{"backstay": [1]}', "backstay is [1]", "write"),
        ('{"backstay": {"log": ["/x"]}}', "log is ['/x']", "write it as text"),
        ('{"backstay": {"mode": {"a": 1}}}', "mode is {'a': 1}", "write it as text"),
    ],
)
def test_a_garbled_comment_warns_with_the_place_and_the_mend(comment: str, place: str, mend: str) -> None:
    opt_in = read_comment(comment)
    assert opt_in.opted_in
    assert any(place in warning and mend in warning for warning in opt_in.warnings)


def test_null_in_json_says_nothing() -> None:
    said = read_comment('{"backstay": {"mode": null, "log": null, "checkpoints": null, "progress": null}}')
    assert said == OptIn(opted_in=True)


def test_an_unknown_mode_is_no_mode_and_the_rest_still_counts() -> None:
    opt_in = read_comment("backstay:mode=atuo,checkpoints=/c")
    assert (opt_in.mode, opt_in.checkpoints, len(opt_in.warnings)) == (None, "/c", 1)


@given(st.text())
def test_any_comment_is_read_without_an_exception(comment: str) -> None:
    assert isinstance(read_comment(comment), OptIn)


_PIECES = [
    "backstay",
    ":",
    "=",
    ",",
    "{",
    "}",
    '"',
    "'",
    "mode",
    "auto",
    "progress",
    "(?P<iteration>",
    "\\d+",
    ")",
    ";",
    " ",
    "checkpoints",
    "/x",
    "[",
    "\\",
    "*",
]


@given(st.lists(st.sampled_from(_PIECES), max_size=30).map(lambda pieces: "backstay" + "".join(pieces)))
def test_any_mixture_of_our_own_words_is_read_without_an_exception(comment: str) -> None:
    read_comment(comment)


_SCALARS = st.none() | st.booleans() | st.integers() | st.text(max_size=8)


@given(st.recursive(_SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)))
def test_any_json_value_under_our_key_is_read_without_an_exception(value: object) -> None:
    read_comment(json.dumps({"backstay": value}))


def test_a_comment_of_nothing_but_braces_is_read_in_bounded_time() -> None:
    read_comment("backstay" + "{" * 1_000_000)
    read_comment('{"backstay":' * 100_000)


def test_what_the_comment_says_holds_where_the_operator_opts_the_job_in() -> None:
    said = opted_in(a_job(comment="backstay:checkpoints=/ckpt"), WatchSection(opt_in="all"))
    assert (said.opted_in, said.checkpoints) == (True, "/ckpt")
