"""How one operation is decided and run, whichever operation it is."""
