"""Folders of torch's distributed checkpoints, read and written without torch."""
