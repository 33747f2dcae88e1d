"""The exception and the job's own deepest frame, also among the lines of other ranks."""

from activities.diagnosis.tracebacks import read_traceback

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
