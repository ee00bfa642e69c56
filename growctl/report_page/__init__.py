"""The page of `growctl report`: sections as one self-contained HTML file."""
