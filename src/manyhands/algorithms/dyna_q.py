"""Deep Dyna-Q: Q-learning from real steps and from steps that a learned model imagines.

Sutton 1990 replays a table; here the model is an ensemble (`networks.world`), and it imagines what
a replay cannot know:
- other actions. From a share of the drawn states the model imagines an action of its own: the
  greedy one, or a random one. A model that repeats the recorded action is replay with errors
  (van Hasselt et al. 2019).
- what the present policy would do next. After an imagined action the model takes up to `horizon`
  greedy steps before the bootstrap (Feinberg et al. 2018). Real steps have n-step sums instead:
  the model cannot know what ended them.
An imagined step counts only if the members of the ensemble agree as well as on real steps that
they have not learned from. Otherwise the real step is used.

The share of imagined actions is a schedule. By default it also follows the model's held-out error:
an untrained model imagines nothing.

It differs from Peng et al. 2018, and from Stone and Sachdev 2019: imagined steps are made for the
batch that is drawn now, by the newest model, and are not stored. So old mistakes of the model are
not replayed, and real experience cannot be crowded out.

With `grounded` a simulator replaces the model. It shows what a perfect model would bring.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from manyhands.algorithms import dqn
from manyhands.maths import losses, policies, schedules
from manyhands.networks import heads
from manyhands.networks.forward import Forward, Gradients
from manyhands.networks.world import Imagined, Transitions, World
from manyhands.types import (
    FIRST_STEP,
    Array,
    BadRequest,
    Batch,
    EnvSpec,
    Losses,
    State,
    option,
    restored,
)

# Observations and actions -> next observations, rewards as learned from, and which episodes end.
Simulator = Callable[[Array, Array], tuple[Array, Array, Array]]
HELD_OUT = 10  # one row in so many is never used to fit the model, only to judge it
RATE = 0.01  # of the running mean of the gate's rate, per draw


@dataclass(frozen=True)
class Config(dqn.QLearning):
    target_period_updates: int = option(
        1_000, "updates of Q and model between two copies to the target network", low=1
    )
    horizon: int = option(
        2, "greedy steps imagined after an imagined action, before the bootstrap", low=0
    )
    imagined_share: float = option(
        0.5, "share of the drawn states from which another action is imagined", low=0, high=1
    )
    imagined_share_end: float = option(0.5, "the same, after its schedule", low=0, high=1)
    imagined_share_updates: int = option(
        0, "updates over which the share changes to its end; 0: constant", low=0
    )
    follow_error: bool = option(
        True, "multiply the share by 1 - the model's held-out error, in parts of the variance"
    )
    explore_share: float = option(
        0.5,
        "share of imagined actions that are random, the others are greedy; of several learners, "
        "the share that only explores",
        low=0,
        high=1,
    )
    gate: float = option(
        0.75,
        "trust imagined steps whose disagreement is below this quantile of held-out real steps",
        above=0,
        high=1,
    )
    members: int = option(3, "networks of the model", low=2, high=64)
    model_hidden: tuple[int, ...] = option((128, 128), "sizes of the model's layers", low=1)
    updates_per_fit: int = option(2, "updates of Q for each update of the model", low=1)
    grounded: bool = option(False, "use the true simulator instead of a model: an upper bound")

    @property
    def needs_simulator(self) -> bool:
        return self.grounded


class DynaQ:
    def __init__(
        self,
        config: Config,
        *,
        spec: EnvSpec,
        torso: Callable[[], nn.Module],
        device: str = "cpu",
        simulator: Simulator | None = None,
    ) -> None:
        if len(spec.observation_shape) != 1 or spec.frame_dtype != "float32":
            raise BadRequest(
                f"the model of this algorithm predicts vectors; {spec.id} has observations of "
                f"shape {spec.observation_shape}, {spec.frame_dtype}",
                "use a task with vector observations, or the recipe dqn",
            )
        self.config = config
        self.device = torch.device(device)
        self.actions = spec.actions
        self.online = dqn.network(config.dueling, spec, torso).to(self.device)
        self.target = dqn.network(config.dueling, spec, torso).to(self.device).requires_grad_(False)
        self.world = World(
            spec.observation_shape[0],
            spec.actions,
            hidden=config.model_hidden,
            members=config.members,
            gate=config.gate,
        ).to(self.device)
        self.modules: Mapping[str, nn.Module] = {"q": self.online, "world": self.world}
        self._simulator = simulator
        self._forward, self._forward_target = Forward(self.device), Forward(self.device)
        self._gradients = Gradients()
        self.demand = replace(dqn.demand(config), first_step=True)
        self.remembers: Mapping[str, str] = {}
        self.imagined_steps = 0  # that were trusted, in this process
        self._gate_rate = 0.0  # share of imagined actions that were not trusted, a running mean
        self._explore_share = config.explore_share
        self._version = 0
        self._generator = torch.Generator().manual_seed(int(torch.randint(2**62, ())))
        self._copies = -1  # so the first pull copies
        self._copy()

    def exploration(self, agent_steps: int) -> float:
        return self.config.epsilon(agent_steps)

    def lr(self, agent_steps: int) -> float:
        config = self.config
        return schedules.learning_rate(agent_steps, config.lr, config.lr_decay_steps)

    def act(
        self, observation: Array, exploration: Array, rng: np.random.Generator
    ) -> tuple[Array, Mapping[str, Array]]:
        def values() -> Array:
            return self._forward(self.online, observation)[0]

        return policies.epsilon_greedy(values, self.actions, exploration, rng), {}

    def divide(self, index: int, learners: int) -> None:
        """One of several learners explores or exploits (Tateyama et al. 2007); one does both."""
        if learners > 1:
            self._explore_share = float(index < round(self.config.explore_share * learners))

    # --- Imagining ----------------------------------------------------------------------------

    @torch.no_grad()
    def targets(self, experience: Batch) -> Batch:
        """Adds the action to learn about, which may be imagined, and its goal."""
        action, reward, discount, after = self._other_actions(experience)
        best = self._best(after)[:, None]  # Double DQN
        (values,) = self._forward_target.tensors(self.target, after)
        goal = reward + discount * values.gather(1, best).squeeze(1)
        columns = {**experience.columns, "taken": action, "goal": goal}
        return replace(experience, columns=columns)

    def _other_actions(self, real: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Action, reward, discount and next observation; in a share of the rows imagined ones."""
        known = real.action, real.reward, real.discount, real.next_observation
        share, size = self._share(), len(real.action)
        rows = (self._uniform(size) < share).nonzero().squeeze(1)
        if not len(rows):
            return known
        state = real.observation[rows]
        action = self._chosen(state)
        step = self._imagine(state, action)
        kept = step.trusted
        self._gate_rate += RATE * (1.0 - float(kept.float().mean()) - self._gate_rate)
        self.imagined_steps += int(kept.sum())
        if not kept.any():
            return known
        found = action[kept], *self._onward(Imagined(*(part[kept] for part in step)))
        made = tuple(one.clone() for one in known)
        for one, new in zip(made, found, strict=True):
            one[rows[kept]] = new
        return made[0], made[1], made[2], made[3]

    def _chosen(self, state: Tensor) -> Tensor:
        """Greedy actions, and random ones in their share."""
        size = len(state)
        explores = self._uniform(size) < self._explore_share
        drawn = self._uniform(size).mul(self.actions).long().clamp(max=self.actions - 1)
        return torch.where(explores, drawn, self._best(state))

    def _best(self, state: Tensor) -> Tensor:
        return self._forward.tensors(self.online, state)[0].argmax(1)

    def _onward(self, step: Imagined) -> tuple[Tensor, Tensor, Tensor]:
        """Rewards, discount and last observation of up to `horizon` more greedy steps."""
        gamma = self.config.gamma
        reward, discount, after = step.reward, gamma * step.continues, step.observation
        going = discount > 0
        for _ in range(self.config.horizon):
            step = self._imagine(after, self._best(after))
            going = going & step.trusted
            self.imagined_steps += int(going.sum())
            reward = torch.where(going, reward + discount * step.reward, reward)
            discount = torch.where(going, discount * gamma * step.continues, discount)
            after = torch.where(going[:, None], step.observation, after)
            going = going & (discount > 0)
        return reward, discount, after

    def _imagine(self, observation: Tensor, action: Tensor) -> Imagined:
        if self._simulator is None:
            return self.world.imagine(observation, action)
        after, reward, ended = self._simulator(observation.cpu().numpy(), action.cpu().numpy())
        trusted = np.ones(len(reward), np.bool_)
        arrays = after, reward, (~ended).astype(np.float32), trusted
        return Imagined(*(torch.from_numpy(array).to(self.device) for array in arrays))

    def _share(self) -> float:
        """The share of imagined actions now."""
        config = self.config
        done = min(1.0, self._version / max(1, config.imagined_share_updates))
        rise = (config.imagined_share_end - config.imagined_share) * done
        share = config.imagined_share + (rise if config.imagined_share_updates else 0.0)
        if self._simulator is not None:
            return share
        error = float(self.world.get_buffer("error"))  # 1 before the first fit
        return share * (max(0.0, 1.0 - error) if config.follow_error else error < 1)

    def _uniform(self, size: int) -> Tensor:
        return torch.rand(size, generator=self._generator).to(self.device)

    # --- Learning -----------------------------------------------------------------------------

    def losses(self, batch: Batch) -> Iterator[Losses]:
        # By the version alone: learners in step then fit together, also one that was restarted.
        due = self._version % (self.config.updates_per_fit + 1) == 0
        if due and self._simulator is None:
            yield self._fit(batch)
        learned, goal = replace(batch, action=batch.columns["taken"]), batch.columns["goal"]
        made = dqn.q_losses("q", self._gradients, self.online, learned, goal, losses.huber)
        yield made._replace(diagnostics={**made.diagnostics, **self._model_metrics()})

    def _fit(self, batch: Batch) -> Losses:
        held_out = torch.from_numpy(batch.rows % HELD_OUT == 0).to(self.device)
        reward, discount, after = (batch.columns[name] for name in FIRST_STEP)
        steps = Transitions(batch.observation, batch.action, reward, discount == 0, after)
        loss = self.world.losses(steps, held_out)
        return Losses("world", loss, loss.detach(), {})

    def _model_metrics(self) -> Mapping[str, Tensor]:
        return {
            "model/held_out_error": self.world.get_buffer("error"),
            "model/disagreement_limit": self.world.get_buffer("limit"),
            "model/gate_rate": torch.tensor(self._gate_rate),
            "model/imagined_share": torch.tensor(self._share()),
        }

    def refreshed(self, version: int) -> bool:
        self._version, before = version, self._copies
        self._copies = version // self.config.target_period_updates
        if self._copies != before:
            self._copy()
        return self._copies != before

    def _copy(self) -> None:
        self.target.load_state_dict(self.online.state_dict())

    def state(self) -> State:
        return {
            "copies": self._copies,
            "version": self._version,
            "gate_rate": self._gate_rate,
            "generator": self._generator.get_state().numpy(),
            "target": heads.arrays_of(self.target),
        }

    def restore(self, state: State) -> None:
        self._copies = restored.count(state, "copies", least=-1)
        self._version = restored.count(state, "version")
        self._gate_rate = restored.number(state, "gate_rate", least=0)
        self._generator.set_state(torch.from_numpy(np.array(state["generator"])))
        heads.load_arrays(self.target, state["target"])


make = DynaQ
