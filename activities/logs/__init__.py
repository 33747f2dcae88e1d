"""Training logs: where they lie, following them by offset, the prefixes and the progress in their lines."""
