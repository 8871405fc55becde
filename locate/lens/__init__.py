"""The FFN lens: what a model's memories hold, and how a prediction is built from them, read in words."""
