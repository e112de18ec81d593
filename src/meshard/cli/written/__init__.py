"""What users write in a command line and in the files that it names: read strictly, never run."""
