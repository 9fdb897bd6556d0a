"""WebArena: tasks on the web, in a real browser."""
