"""Networks that learn to edit: trained once for a model, they turn a fact's gradient into an update."""
