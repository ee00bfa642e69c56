"""What runs occupy on disk, what they share, and removing what can be made again."""
