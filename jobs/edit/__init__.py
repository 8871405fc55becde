"""Editing facts and scoring the edits: `jobs.edit.job` is the job."""
