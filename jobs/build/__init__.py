"""Building a list of facts: `jobs.build.job` is the job; its folder, its plan in words, its rules of acceptance."""
