"""Datasets of images: what they are, how they are prepared, and their training and evaluation samples."""
