"""Causal tracing: which states, where, carry a fact."""
