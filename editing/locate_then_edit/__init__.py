"""Editors that rewrite the values of the layers that hold a fact: from fact to key, target and update."""
