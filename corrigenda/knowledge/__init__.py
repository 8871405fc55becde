"""Knowledge beside a model: generalized cross-attention, and the base of facts and of what was solved for them."""
