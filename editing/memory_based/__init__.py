"""Editors that put a memory beside the model and say when it answers."""
