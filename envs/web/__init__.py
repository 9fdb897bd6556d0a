"""The web: a browser that environments share, pages as text, and WebArena's actions."""
