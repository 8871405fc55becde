"""How much fits: `jobs.capacity.job` is the job; what it measures, and what comes of it."""
