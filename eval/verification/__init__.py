"""The verification of an edit that holds a list of facts: what each makes the model say, and what changed beside it."""
