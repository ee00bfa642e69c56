"""The JSON documents that scripts read: how commands print them, and their JSON Schemas."""
