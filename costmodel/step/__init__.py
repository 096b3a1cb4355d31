"""One training step, priced: one file an axis (what it splits, sends, hides and stores), and `price` that sums them."""
