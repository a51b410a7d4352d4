"""Deep Dyna-Q: Q-learning from real steps and from steps that a learned model imagines.

Sutton 1990 replays a table; here the model is an ensemble (`networks.world`). It imagines what a
replay cannot know: short episodes that begin in real states with a random or the greedy action, and
then follow the policy. One that repeats recorded actions is replay with errors (van Hasselt 2019).

Before every draw all imagined episodes make a step. Steps that the model is sure of are kept in a
small memory, which several learners share. A share of each batch is drawn from it. The share is a
schedule, and by default follows the model's held-out error: an untrained model imagines nothing.

It differs from Stone and Sachdev 2019 and Peng et al. 2018: imagined episodes are a few steps long,
what the model is not sure of is not learned, and the imagined share of a batch does not follow how
much is imagined. So real experience cannot be crowded out.

With `grounded` a simulator replaces the model: what a perfect model would bring.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from manyhands.algorithms import dqn
from manyhands.maths import losses, policies
from manyhands.networks import heads
from manyhands.networks.forward import Forward, Gradients
from manyhands.networks.imagining import Episodes
from manyhands.networks.world import Imagined, Transitions, World
from manyhands.types import (
    FIRST_STEP,
    Array,
    BadRequest,
    Batch,
    EnvSpec,
    ImaginedMemory,
    Losses,
    State,
    option,
    restored,
)

# Observations and actions -> next observations, rewards as learned from, and which episodes end.
Simulator = Callable[[Array, Array], tuple[Array, Array, Array]]
HELD_OUT = 10  # one row in so many is never used to fit the model, only to judge it
LEARNED = ("observation", "action", "reward", "discount", "next_observation")  # of a step
FITS_FIRST = 500  # updates after which the model is fitted less often, step by step
RATE = 0.01  # of the running mean of the gate's rate, per draw


@dataclass(frozen=True)
class Config(dqn.QLearning):
    target_period_updates: int = option(
        1_000, "updates of Q and model between two copies to the target network", low=1
    )
    average_updates: int = option(
        0, "act with the mean of the parameters after so many updates; 0: with the newest", low=0
    )
    horizon: int = option(5, "steps of an imagined episode", low=1)
    imagined_episodes: int = option(
        64, "imagined episodes side by side; each makes a step before every draw", low=1
    )
    imagined_capacity: int = option(20_000, "imagined steps that all learners keep", low=1)
    imagined_share: float = option(0.5, "share of a batch that is imagined", low=0, high=1)
    imagined_share_end: float = option(0.5, "the same, after its schedule", low=0, high=1)
    imagined_share_updates: int = option(
        0, "updates over which the share changes to its end; 0: constant", low=0
    )
    follow_error: bool = option(
        True, "multiply the share by 1 - the model's held-out error, in parts of the variance"
    )
    explore_share: float = option(
        0.5,
        "share of imagined episodes with random actions, the others are greedy; of several "
        "learners, the share that only explores",
        low=0,
        high=1,
    )
    gate: float = option(
        0.75,
        "trust imagined steps whose doubt is below this quantile of held-out real steps",
        above=0,
        high=1,
    )
    members: int = option(3, "networks of the model", low=2, high=64)
    model_hidden: tuple[int, ...] = option((64, 64), "sizes of the model's layers", low=1)
    updates_per_fit: int = option(
        16, "updates of Q for each update of the model; fewer at first", low=1
    )
    grounded: bool = option(False, "use the true simulator instead of a model: an upper bound")

    @property
    def needs_simulator(self) -> bool:
        return self.grounded

    @property
    def imagined_at_once(self) -> int:
        return self.imagined_episodes * self.horizon


class DynaQ(dqn.Scheduled):
    config: Config
    imagined: ImaginedMemory

    def __init__(
        self,
        config: Config,
        *,
        spec: EnvSpec,
        torso: Callable[[], nn.Module],
        imagined: ImaginedMemory,
        device: str = "cpu",
        simulator: Simulator | None = None,
    ) -> None:
        if len(spec.observation_shape) != 1 or spec.frame_dtype != "float32":
            raise BadRequest(
                f"the model of this algorithm predicts vectors; {spec.id} has observations of "
                f"shape {spec.observation_shape}, {spec.frame_dtype}",
                "use a task with vector observations, or the recipe dqn",
            )
        self.config, self.actions, self.device = config, spec.actions, torch.device(device)
        self._make_networks(spec, torso)
        self._simulator = simulator
        self._forward, self._forward_target = Forward(self.device), Forward(self.device)
        self._gradients = Gradients()
        self.demand = replace(dqn.demand(config), first_step=True)
        self.remembers: Mapping[str, str] = {}
        self.imagined_steps = 0  # that were trusted, in this process
        self._gate_rate = 0.0  # share of imagined actions that were not trusted, a running mean
        self._explore_share = config.explore_share
        self.imagined, self._version = imagined, 0
        self._episodes = Episodes(
            config.imagined_episodes, spec.observation_shape[0],
            horizon=config.horizon, gamma=config.gamma, device=self.device,
        )  # fmt: skip
        self._generator = torch.Generator().manual_seed(int(torch.randint(2**62, ())))
        self._copies = -1  # so the first pull copies
        self.target.load_state_dict(self.online.state_dict())

    def _make_networks(self, spec: EnvSpec, torso: Callable[[], nn.Module]) -> None:
        config, size = self.config, spec.observation_shape[0]
        self.online = dqn.network(config.dueling, spec, torso).to(self.device)
        self.target = dqn.network(config.dueling, spec, torso).to(self.device).requires_grad_(False)
        self.world = World(
            size, spec.actions,
            hidden=config.model_hidden, members=config.members, gate=config.gate,
        ).to(self.device)  # fmt: skip
        self.average = dqn.averaged(self.online, config.average_updates)
        q = self.average or self.online
        self.modules: Mapping[str, nn.Module] = {"q": q, "world": self.world}
        self._acting = self.average.mean if self.average else self.online

    def act(
        self, observation: Array, exploration: Array, rng: np.random.Generator
    ) -> tuple[Array, Mapping[str, Array]]:
        def values() -> Array:
            return self._forward(self._acting, observation)[0]

        return policies.epsilon_greedy(values, self.actions, exploration, rng), {}

    def divide(self, index: int, learners: int, imagined: ImaginedMemory) -> None:
        """Several learners share what they imagine. Each explores or exploits (Tateyama et al.
        2007); one alone does both.
        """
        self.imagined = imagined
        if learners > 1:
            self._explore_share = float(index < round(self.config.explore_share * learners))

    # --- Imagining ----------------------------------------------------------------------------

    @torch.no_grad()
    def targets(self, experience: Batch) -> Batch:
        """Replaces a share of the steps by imagined ones, and adds the goal of each."""
        held_out = torch.from_numpy(experience.rows % HELD_OUT == 0).to(self.device)
        share = self._share()
        if share:
            self._imagine(experience)
        learned = self._mixed(experience, share)
        after = learned.next_observation
        best = self._best(after)[:, None]  # Double DQN
        (values,) = self._forward_target.tensors(self.target, after)
        goal = learned.reward + learned.discount * values.gather(1, best).squeeze(1)
        own = {"real": experience.observation, "real_action": experience.action}
        columns = {**experience.columns, **own, "held_out": held_out, "goal": goal}
        return replace(learned, columns=columns)

    def _imagine(self, experience: Batch) -> None:
        """Continues all imagined episodes by a step; new ones begin in the drawn states."""
        count = self.config.imagined_episodes
        begins = torch.arange(count) % len(experience.action)
        real, rows = experience.observation[begins], torch.from_numpy(experience.rows)[begins]
        steps, distrusted = self._episodes.turn(real, rows, self._chosen, self._predict)
        self._gate_rate += RATE * (distrusted - self._gate_rate)
        self.imagined_steps += len(steps.action)
        self.imagined.extend({n: part.numpy(force=True) for n, part in steps._asdict().items()})

    def _mixed(self, real: Batch, share: float) -> Batch:
        """Some steps are replaced by imagined ones, which count for the states they began in."""
        rows = (self._uniform(len(real.action)) < share).nonzero().squeeze(1)
        drawn = self.imagined.draw(self._uniform(len(rows)).numpy(force=True))
        if drawn is None:
            return real
        steps = {name: torch.from_numpy(array).to(self.device) for name, array in drawn.items()}
        steps["action"] = steps["action"].long()
        learned = {name: getattr(real, name).index_copy(0, rows, steps[name]) for name in LEARNED}
        ids = real.rows.copy()
        ids[rows.numpy(force=True)] = drawn["origin"]
        return replace(real, rows=ids, **learned)

    def _chosen(self, state: Tensor, begins: Tensor) -> Tensor:
        """Greedy actions; at the beginning of an episode that explores a random one."""
        size = len(state)
        explores = begins & (torch.arange(size) < round(self._explore_share * size))
        drawn = self._uniform(size).mul(self.actions).long().clamp(max=self.actions - 1)
        return torch.where(explores, drawn, self._best(state))

    def _best(self, state: Tensor) -> Tensor:
        return self._forward.tensors(self.online, state)[0].argmax(1)

    def _predict(self, observation: Tensor, action: Tensor) -> Imagined:
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
        period = min(self.config.updates_per_fit, 1 + self._version // FITS_FIRST)
        due = self._version % (period + 1) == 0
        if due and self._simulator is None:
            yield self._fit(batch)
        goal = batch.columns["goal"]
        made = dqn.q_losses("q", self._gradients, self.online, batch, goal, losses.huber)
        yield made._replace(diagnostics={**made.diagnostics, **self._model_metrics()})

    def _fit(self, batch: Batch) -> Losses:
        names = ("real", "real_action", *FIRST_STEP, "held_out")
        before, action, reward, discount, after, held_out = (batch.columns[n] for n in names)
        steps = Transitions(before, action, reward, discount == 0, after)
        loss, backward = self.world.losses(steps, held_out)
        return Losses("world", loss, loss, {}, backward, self.world.replaces)

    def _model_metrics(self) -> Mapping[str, Tensor]:
        return {
            "model/held_out_error": self.world.get_buffer("error"),
            "model/disagreement_limit": self.world.get_buffer("limit"),
            "model/gate_rate": torch.tensor(self._gate_rate),
            "model/imagined_share": torch.tensor(self._share()),
        }

    def refreshed(self, version: int) -> bool:
        if self.average:
            self.average.follow()
        copies = version // self.config.target_period_updates
        if due := copies != self._copies:
            self.target.load_state_dict(self.online.state_dict())
        self._version, self._copies = version, copies
        return due

    def state(self) -> State:
        return {
            "copies": self._copies,
            "version": self._version,
            "gate_rate": self._gate_rate,
            "generator": self._generator.get_state().numpy(),
            "episodes": self._episodes.state(),
            "target": heads.arrays_of(self.target),
        }

    def restore(self, state: State) -> None:
        self._copies = restored.count(state, "copies", least=-1)
        self._version = restored.count(state, "version")
        self._gate_rate = restored.number(state, "gate_rate", least=0)
        self._episodes.restore(state["episodes"])
        self._generator.set_state(torch.from_numpy(np.array(state["generator"])))
        heads.load_arrays(self.target, state["target"])


make = DynaQ
