"""One file an axis: what it splits, what it sends, what hides it, what it stores."""
