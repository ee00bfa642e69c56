"""Datasets: token shards with a manifest, read as samples in an order that one integer determines."""
