"""The engine: bytes in, first cause and suspects out, by a table of signatures. Deterministic; no clock, no network."""
