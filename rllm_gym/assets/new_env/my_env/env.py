"""MyEnv: find a number by asking whether it is higher or lower."""

from rllm_gym.envs import StepResult, TextEnv, parse_action

HIGHEST = 100


class MyEnv(TextEnv):
    """Find a number from 1 to 100.

    Task:
        Item i is the number i + 1.

    Observation:
        Text: the question; then "Higher.", "Lower.", "Right." or "Say a number from 1 to 100.".

    Action:
        Text that ends in `Action: ` and a number.

    Reward:
        1.0 for the number, 0.0 for everything else.

    Episode end:
        Terminated when the number is found; never truncated from inside. Training and `max_episode_steps` set the
        limit on turns.

    Info keys:
        `item_id` ("my_env_17"), `category` ("low" or "high"), `is_success`, `is_invalid_action` (no number from 1 to
        100).
    """

    name = "my_env"
    num_items = HIGHEST
    default_system_prompt = (
        f"Find a number from 1 to {HIGHEST}. After each of your numbers you are told whether it is higher or lower.\n"
        "Write one line: Action: <number>"
    )

    def _split_indices(self, split):
        # What is evaluated on must not be trained on.
        items = range(self.num_items)
        return [i for i in items if split == "all" or (i % 5 == 4) == (split == "eval")]

    def _reset_item(self, index):
        # Whatever is random comes from self.np_random, so that a seed repeats the episode.
        self._low, self._high = 1, HIGHEST  # what the answers leave
        return "What is the number?"

    def _act(self, action):
        said = parse_action(action)
        if not (said.isascii() and said.isdigit() and 1 <= int(said[:9]) <= HIGHEST):
            return StepResult(f"Say a number from 1 to {HIGHEST}.", 0.0, is_over=self.is_success, is_invalid=True)
        guess, number = int(said), self.index + 1
        if guess == number:
            self.is_success = True
            return StepResult("Right.", 1.0, is_over=True, is_invalid=False)
        if guess < number:
            self._low = max(self._low, guess + 1)
        else:
            self._high = min(self._high, guess - 1)
        return StepResult("Higher." if guess < number else "Lower.", 0.0, is_over=self.is_success, is_invalid=False)

    @property
    def category(self):
        """What success is reported by."""
        return "low" if self.index < HIGHEST // 2 else "high"

    def expert_action(self):
        """Halve what is left."""
        return f"Action: {(self._low + self._high) // 2}"
