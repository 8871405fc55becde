"""Evaluation in real use: questions as a person asks them, with answers that end by themselves."""
