"""Every side effect and every judgement. Steps by name, and beside them the things they touch."""
