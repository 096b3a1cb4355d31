"""Training logs of other programs, read line by line for what a step took and how much memory it held."""
