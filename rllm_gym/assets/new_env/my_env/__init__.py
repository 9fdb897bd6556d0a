"""Registers MyEnv: gymnasium.make("my_env:my_env/MyEnv-v0")."""

from rllm_gym import register_text_env

register_text_env("my_env/MyEnv-v0", "my_env.env:MyEnv")
