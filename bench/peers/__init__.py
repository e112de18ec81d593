"""Other libraries, each in a module that is imported only where the library is installed."""
