"""The page of a fact: what `jobs.explain` and `explain` are made of."""
