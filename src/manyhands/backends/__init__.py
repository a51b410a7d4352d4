"""Where processes run and how they talk. This room knows nothing of reinforcement learning."""
