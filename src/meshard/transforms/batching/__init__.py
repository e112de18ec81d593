"""Functions of one example mapped over many: one more dim, in front of all others."""
