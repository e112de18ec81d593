"""Functions whose derivatives follow from what users say of them."""
