"""BabyAI: carry out an instruction in a grid world of rooms, doors and objects, seen and acted on in text."""
