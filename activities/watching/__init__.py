"""The machinery of `watch_attempt`: reading the disk on threads, folding what is seen of one attempt, one ticker for all.

Used by `activities/detect.py` only. What counts as a fault is not decided here but in `activities/detectors/`.
"""
