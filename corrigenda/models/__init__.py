"""A model's weights, tokenizer and parts, and its feed-forward layers as key-value memories."""
