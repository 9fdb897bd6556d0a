"""The page: replays trajectories, shows curves and groups, and lets one act in an environment by hand."""
