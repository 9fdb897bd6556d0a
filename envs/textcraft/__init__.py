"""TextCraft: craft an item of a block environment from recipes given as text."""
