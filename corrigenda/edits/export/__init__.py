"""Edits in the forms of other programs."""
