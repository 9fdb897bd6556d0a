"""ALFWorld: household tasks in text games."""
