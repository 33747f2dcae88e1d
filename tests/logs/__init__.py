"""Tests of activities/logs: paths, following, prefixes, progress."""
