"""Where blocks are stored: pages, arenas that neighbours map, and who may write where."""
