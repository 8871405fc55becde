"""Knowledge circuits: which edges between heads, FFNs, embedding and logits carry a fact."""
