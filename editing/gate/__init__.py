"""A gate that knows the question: what it is trained on, its training, and where it is kept for a model."""
