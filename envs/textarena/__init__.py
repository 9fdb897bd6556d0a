"""TextArena: puzzles and games for one player, as text."""
