"""How elements get from files and blocks to blocks and files, in rounds of bounded size."""
