"""Who takes part: going on without processes that have died, and with ones that join."""
