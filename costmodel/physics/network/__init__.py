"""Links, meshes and collectives: bytes and ranks in, seconds out."""
