"""Runs on disk: a run's folder and records, the store of runs, ids, environment, trackers."""
