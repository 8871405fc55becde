"""Dictionaries of features at work: training one, measuring it, and the features of facts and edits."""
