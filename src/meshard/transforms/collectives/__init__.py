"""Operations between the devices of a `shard_map` body."""
