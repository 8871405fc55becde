"""The page of a fact: `jobs.explain.job` is the job, and here is what it and `explain` are made of."""
