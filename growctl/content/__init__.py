"""What a report says, as data: sections of paragraphs, tables and charts, and how each output shows them."""
