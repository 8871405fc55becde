"""Tuning an editor for a model: `jobs.tune.job` is the job, and here are its parts."""
