"""Operations that make, regroup and index arrays, and elementwise ones."""
