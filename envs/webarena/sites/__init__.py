"""Four small sites, served locally: a shop, a forum, a code host and the shop's content management."""

from rllm_gym.errors import MachineError

try:
    import flask as flask
except ModuleNotFoundError as e:
    raise MachineError('WebArena-v0 needs the flask package: pip install "rllm-gym[web]".') from e
