"""Dictionaries of features: an FFN's output as a few of many directions, and the layouts that they are published in."""
