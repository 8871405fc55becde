"""Settings: classes that check their fields, their configurations, docstrings and declarations."""
