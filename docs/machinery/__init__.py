"""What the site is built with, beside Sphinx: extensions that conf.py names."""
