"""The nearest of many keys: exactly, or among the candidates of an index; one file an index."""
