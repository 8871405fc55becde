"""Texts: words, what joins them, and how they are shown."""
