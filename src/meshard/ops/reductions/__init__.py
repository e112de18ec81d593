"""Operations over dims: reductions, statistics, scans, sorts and sets."""
