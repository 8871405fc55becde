"""WISE (Wang et al. 2024): a side memory beside one layer's values, routed by the prompt."""
