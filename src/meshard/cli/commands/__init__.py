"""The commands, each with its own options: a module of that name whose `command` reads them."""
