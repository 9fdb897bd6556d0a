"""TextCraft: craft an item of a block world from recipes given as text."""
