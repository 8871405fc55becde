"""Baselines and controls that every comparison needs."""
