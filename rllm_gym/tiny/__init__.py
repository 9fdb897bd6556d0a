"""The shipped tiny model: how it is made and measured. `python -m rllm_gym.tiny.train OUT` makes it."""
