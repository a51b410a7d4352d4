"""The map of manyhands: its words, the data that goes round, and its five seams.

Words
-----
agent step   one decision in one environment. Every count is in agent steps over all workers
             unless its name says otherwise (``target_period_updates``).
frame        one emulator frame (an Atari agent step is four).
update       one gradient applied to the shared parameters.
version      how many updates a copy of the parameters contains.
staleness    the version a gradient was applied at minus the version it was computed at.
actor        steps environments and records what happened.
learner      turns experience into gradients.
worker       a process that does both in one loop.
strategy     where the parameters live and how a gradient reaches them.
backend      where processes run and how they talk.
lane         the unbroken, time-ordered record of one environment.
memory       what is kept of experience and how it is drawn.
task         what to learn.
recipe       how: algorithm x strategy x roles x memory, with values.
option       a field of a configuration: typed, with its range and one sentence.
plan         a task and a recipe resolved: every option, and where its value came from.
part         the parameters of one network, a slice of the flat vector with an optimizer of its own.
rank         the number of a process among those of its kind. A restarted process keeps it;
             its incarnation counts the restarts.
shard        a process of a parameter server that owns some of the parameters.
double buffer   two copies and a count: one process writes, others read, nobody waits.
pacing       how many updates are due, and how far actors may run ahead of learners.
pairing      which learners draw from which actors.
stopwatch    where a role's time goes.
scores       the raw returns of episodes.
broken       an environment that raised or returned nonsense. It is made again and counted.

The data goes one way round: envs -> actor -> memory -> learner -> strategies -> actor.
Importing this file imports neither torch nor ray. It reads the files of protocols, backends and
errors when one of their names is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from manyhands.types.data import VALUES as VALUES
from manyhands.types.data import AnyDemand as AnyDemand
from manyhands.types.data import Array as Array
from manyhands.types.data import Batch as Batch
from manyhands.types.data import Break as Break
from manyhands.types.data import Demand as Demand
from manyhands.types.data import EnvSpec as EnvSpec
from manyhands.types.data import Experience as Experience
from manyhands.types.data import Losses as Losses
from manyhands.types.data import Options as Options
from manyhands.types.data import QueueDemand as QueueDemand
from manyhands.types.data import Rollout as Rollout
from manyhands.types.data import RolloutDemand as RolloutDemand
from manyhands.types.data import Rows as Rows
from manyhands.types.data import State as State
from manyhands.types.data import Step as Step
from manyhands.types.data import T as T
from manyhands.types.data import knob as knob
from manyhands.types.data import option as option
from manyhands.types.data import options_of as options_of

if TYPE_CHECKING:
    from manyhands.types.backend import Average as Average
    from manyhands.types.backend import Backend as Backend
    from manyhands.types.backend import Channel as Channel
    from manyhands.types.backend import Fault as Fault
    from manyhands.types.backend import Future as Future
    from manyhands.types.backend import Group as Group
    from manyhands.types.backend import Handle as Handle
    from manyhands.types.backend import Job as Job
    from manyhands.types.backend import Lock as Lock
    from manyhands.types.backend import ProcessInfo as ProcessInfo
    from manyhands.types.backend import Rank as Rank
    from manyhands.types.backend import Work as Work
    from manyhands.types.errors import BadRequest as BadRequest
    from manyhands.types.errors import Failure as Failure
    from manyhands.types.errors import Refusal as Refusal
    from manyhands.types.protocols import Algorithm as Algorithm
    from manyhands.types.protocols import Environment as Environment
    from manyhands.types.protocols import Ledger as Ledger
    from manyhands.types.protocols import Memory as Memory
    from manyhands.types.protocols import Model as Model
    from manyhands.types.protocols import Parameters as Parameters
    from manyhands.types.protocols import PlanView as PlanView
    from manyhands.types.protocols import ReplacingLayer as ReplacingLayer
    from manyhands.types.protocols import Source as Source
    from manyhands.types.protocols import Strategy as Strategy

_LAZY = {
    "backend": "Average Backend Channel Fault Future Group Handle Job Lock ProcessInfo Rank Work",
    "errors": "BadRequest Failure Refusal",
    "protocols": "Algorithm Environment Ledger Memory Model Parameters PlanView ReplacingLayer "
    "Source Strategy",
}
_FILE_OF = {name: file for file, names in _LAZY.items() for name in names.split()}

if not TYPE_CHECKING:  # a type checker would take any name for one of these

    def __getattr__(name: str) -> Any:
        if name not in _FILE_OF:
            raise AttributeError(f"module 'manyhands.types' has no attribute {name!r}")
        value = getattr(import_module(f"manyhands.types.{_FILE_OF[name]}"), name)
        globals()[name] = value
        return value
