"""The shipped tiny model: how it is made and measured. `python -m tools.tiny_model.train OUT` makes it."""
