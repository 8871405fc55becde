"""What a model gives to prompts: probabilities of targets, free answers, held-out texts, and what changed of them."""
