"""Code inside `shard_map`: values as grids of cells, and how operations run on them."""
