"""What `jobs.build` is made of: the folder of a list, the plan in words, and the rules of acceptance."""
