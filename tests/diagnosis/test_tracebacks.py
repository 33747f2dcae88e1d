"""The exception and the job's own deepest frame, also among the lines of other ranks."""

import pytest

from activities.diagnosis.tracebacks import Printed, printed_by, read_traceback

BEFORE = """\
[rank1]: Traceback (most recent call last):
[rank3]: Traceback (most recent call last):
[rank1]:   File "/data/run1/other.py", line 1, in f
[rank3]:   File "/data/run1/train.py", line 40, in <module>
[rank3]:     main()
[rank3]:   File "/data/run1/train.py", line 33, in main
[rank3]:     best = loader.next()
[rank3]:   File "/opt/venv/lib/python3.10/site-packages/torch/utils/data/dataloader.py", line 12, in __next__
"""


def test_the_deepest_own_frame_is_found_among_other_ranks_lines() -> None:
    found = read_traceback("[rank3]: ValueError: max() arg is an empty sequence", BEFORE)
    assert found is not None
    assert (found.type, found.message, found.place, found.frames) == (
        "ValueError",
        "max() arg is an empty sequence",
        "train.py:33 (main)",
        3,
    )


def test_an_exception_without_own_frames_has_no_place() -> None:
    found = read_traceback("torch.cuda.OutOfMemoryError: CUDA out of memory.", "")
    assert found is not None
    assert (found.type, found.place) == ("OutOfMemoryError", None)


def test_other_lines_are_no_exception() -> None:
    assert read_traceback("step 3 loss 2.1", BEFORE) is None


@pytest.mark.parametrize(
    ("frames", "printed"),
    [
        ('  File "/w/train.py", line 9, in <module>\n', Printed.BY_THE_END),
        ('  File "<frozen runpy>", line 198, in _run_module_as_main\n', Printed.BY_THE_END),
        (
            '  File "<string>", line 1, in <module>\n  File "/usr/lib/python3.10/multiprocessing/spawn.py", line 116, in spawn_main\n',
            Printed.BY_THE_END,
        ),
        ('  File "/w/data.py", line 3, in get\n', Printed.BY_THE_PROGRAM),
        ('  File "<string>", line 14, in <module>\n  File "<string>", line 9, in solve\n', Printed.BY_A_LIBRARY),
        ('  File "/opt/venv/lib/python3.10/site-packages/urllib3/connection.py", line 174, in _new_conn\n', Printed.BY_A_LIBRARY),
        ('  File "/w/train.py", line 9\n', Printed.UNKNOWN),
        ("", Printed.UNKNOWN),
    ],
)
def test_the_outermost_frame_tells_an_end_from_an_exception_somebody_caught(frames: str, printed: Printed) -> None:
    assert printed_by("step 4 loss 2.0\nTraceback (most recent call last):\n" + frames) is printed


def test_a_traceback_inside_another_exceptions_message_is_not_where_it_begins() -> None:
    outer = 'Traceback (most recent call last):\n  File "/w/train.py", line 9, in <module>\nKeyError: Caught KeyError in replica 0.\n'
    inner = 'Original Traceback (most recent call last):\n  File "/w/worker.py", line 2, in _worker_loop\n'
    assert printed_by(outer + inner) is Printed.BY_THE_END


def test_a_log_that_does_not_show_where_the_traceback_begins_says_nothing() -> None:
    assert printed_by('  File "/w/data.py", line 3, in get\n') is Printed.UNKNOWN
