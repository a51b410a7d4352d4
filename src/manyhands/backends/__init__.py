"""Where workers run and how they talk; knows nothing of reinforcement learning."""
