"""BabyAI: carry out an instruction in a grid environment of rooms, doors and objects, seen and acted on in text."""
