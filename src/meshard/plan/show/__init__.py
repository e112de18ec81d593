"""Tables, summaries, drawings and pages: the means of showing something."""
