"""Edits: what can be applied to a model, taken back bit for bit, saved and loaded; one file a kind."""
