"""TextWorld: play generated text adventures in a house of rooms, doors, containers and keys."""
