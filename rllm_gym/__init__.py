"""Train LLM agents by multi-turn reinforcement learning, on Gymnasium and RLlib."""
