"""Tuning an editor for a model: `jobs.tune` is the job, and here are its parts."""
