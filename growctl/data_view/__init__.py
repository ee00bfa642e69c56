"""`growctl data show`: what a dataset holds, and what training reads of it."""
