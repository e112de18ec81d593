"""meshard's own format: a manifest, and a file of data for each process that writes."""
