"""Forwards of a model: interventions, recordings, partial forwards, shared prefixes, generation."""
