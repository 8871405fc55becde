"""How facts are edited and scored: one by one, all at once, or one after another."""
