"""Scripts that made what ships; not in the wheel."""
