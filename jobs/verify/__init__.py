"""Verifying a list of corrections on a running server."""
