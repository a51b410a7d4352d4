"""Train an agent, then let it play in a plain Gymnasium loop.

python examples/train_and_play.py [STEPS]
"""

import sys

import gymnasium as gym

import manyhands as mh

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000

run = mh.train("cartpole", recipe="ppo", steps=steps, until_solved=True)
print("solved:", run.summary["solved"])
print("greedy score:", run.evaluate(episodes=10).mean)

policy = mh.load(run.path)  # in any program, from the run's folder alone
env = gym.make("CartPole-v1")
observation, _ = env.reset(seed=1)
score, over = 0.0, False
while not over:
    observation, reward, terminated, truncated, _ = env.step(policy.act(observation))
    score += float(reward)
    over = terminated or truncated
print("one episode:", score)
