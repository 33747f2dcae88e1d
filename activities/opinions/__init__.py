"""Outside opinions beside our own, each with a deadline: NVIDIA's attribution service, the operator's own HTTP service."""
