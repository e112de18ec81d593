"""Where key maps come from: loaders that are recorded, and templates for well-known models."""
