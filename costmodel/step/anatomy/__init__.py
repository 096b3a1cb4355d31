"""What a model is made of at one shard: parameters, operators, the cost of a decoded token."""
