"""Many expressions over many bytes in one pass: what reads logs, redacts and diagnoses stands on it. Knows nothing of jobs."""
