"""Jobs: what `run.py` can do, one file each, found by the name that `job=` gives (`jobs.job` says how)."""
