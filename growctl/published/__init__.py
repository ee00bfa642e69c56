"""Published figures, shown beside measured ones and apart from them."""
