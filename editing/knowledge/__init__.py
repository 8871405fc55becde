"""Editors for a knowledge base: who solves its entries, and who folds them into the weights, by an editor's name."""
