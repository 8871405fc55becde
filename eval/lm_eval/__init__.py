"""Tasks of the lm-evaluation-harness before and after an edit."""
