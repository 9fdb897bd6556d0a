"""Evaluations: panels of tasks, what a policy does on them, and how two policies compare."""
