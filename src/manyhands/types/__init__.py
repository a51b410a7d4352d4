"""The map of manyhands: its words, its data, and the protocols between its rooms.

Words
-----
actor           steps environments and records what happened.
agent step      one decision in one environment. Every count is in agent steps over all workers
                unless its name says otherwise (``target_period_updates``).
arrangement     strategy and numbers of processes: what a resumed run may change.
backend         where processes run and how they talk.
batch           what one gradient is computed from.
broken          of an environment: it raised or returned nonsense. It is replaced, and counted.
budget          how far a field of a table may grow in sum, exact even if rows are read late.
cell            one training of a comparison: a recipe, a number of workers and a seed.
channel         small records from many writers to one reader. A full channel drops records.
checkpoint      a folder with everything that a run needs to continue.
closed form     of a network: its passes by compiled loops or NumPy, without autograd.
closing row     the row of an episode's last observation. It has no action.
column          a value that an algorithm adds to every row, such as a log-probability.
demand          what an algorithm needs from a memory: batch size, pace, n-step.
double buffer   two copies and two counters: one process writes, others read, and none waits.
fault           a failure that the run survived: which process, its cause, and what was done.
flat vector     all parameters of a model, one after the other, in one tensor.
frame           one emulator frame (an Atari agent step is four).
greedy          always the action with the highest value, without exploration.
group           processes that average vectors in rounds.
head            the layers that turn features into Q-values, logits or values.
hook            a user's function that sees every report of a run.
hosted object   an object that a backend runs for all workers. They tell it or ask it something.
imagined        of experience: made up by a learned model.
incarnation     how often a process was restarted, 0 at first.
island          workers that share one vector, and exchange what they learned with other islands.
job             a function that a backend runs in a process. It yields between two turns.
kept state      the algorithm's state beside its parameters, such as a target network.
lane            the unbroken, time-ordered record of one environment.
learner         turns experience into gradients.
ledger          the counts of gradients that were applied, by staleness, and of those dropped.
live vector     a vector that one process changes in place while others read it.
main            the process that the user started. It makes what is shared and watches the others.
member          one process of a group; also one file of a room, such as an algorithm.
memory          what is kept of experience and how it is drawn.
needs           what a run needs of its machines: processes, memory, versions of libraries.
neighbour       a learner that another one averages with (gossip) or exchanges vectors with
                (proximal); or a file beside a user's file.
node            a machine, or what Ray calls a node.
node runner     the Ray actor that starts and watches the processes of one node.
notice          the newest vector of one writer, read by all processes.
option          a field of a configuration: typed, with its range and one sentence.
outcome         the newest row of a pair: what followed the last time.
pacing          how many updates are due, and how far actors may run ahead of learners.
pair            a state and an action.
pairing         which learners draw from which actors.
park            to wait at a yield until main continues the run, for example around a checkpoint.
part            the parameters of one network: a slice of the flat vector, with its own optimizer.
plan            a task and a recipe resolved: every option, and where its value came from.
preset          a TOML file with the values of a task or of a recipe.
publish         to make parameters visible to actors, or rows visible to readers.
pull            a learner takes the newest parameters.
push            a learner hands over a gradient.
rank            the number of a process among those of its role. A restarted process keeps it.
recipe          how: algorithm x strategy x roles x memory, with values.
replay          a memory that draws from old rows many times.
replica         one learner's own copy of the parameters.
ring            slots or rows that are filled in order and used again from the start.
role            what a process does: worker, actor, learner or shard.
rollout         some successive steps of several lanes, learned from together.
room            a folder of the package. A room imports only from rooms below it.
row             one observation in a lane, with the action, reward and discount that followed.
scores          the raw returns of episodes.
shard           a process of a parameter server that owns some of the parameters.
site            the machines that a run is simulated on: cores, nodes, links.
slope           the derivative of a loss by an error, a value or a log-probability.
slot            a fixed piece of shared memory for one rollout, message or vector.
snapshot        the weights at one step, kept for videos.
solved          the mean return of the last 100 episodes has reached the task's threshold.
staleness       the version a gradient was applied at minus the version it was computed at. Of an
                actor: the learners' version when it acts minus that of its weights.
state           a discrete observation; also what a checkpoint holds of an object.
stopwatch       where a role's time goes.
strategy        where the parameters live and how a gradient reaches them.
stream          rows or rollouts from many writers to one reader.
supervisor      watches the processes of one machine, and restarts those that die or hang.
table           shared numbers. Each row has one writer; all processes read it, perhaps late.
                Also the values of a tabular algorithm.
target network  an older copy of a network, which the network learns from.
task            what to learn.
token           what the islands of a ring pass on: the one that has it exchanges (Hogwild++).
torn            of a row: overwritten while it was read. It is counted, and another row is drawn.
torso           the layers that turn observations into features.
turn            one pass of a role's loop; with the backend inprocess, the time one worker runs.
update          one gradient applied to the shared parameters.
version         how many updates a copy of the parameters contains.
warm-up         the agent steps before the first update.
worker          a process that acts and learns in one loop.
zygote          a process that has imported the large libraries, and forks the others.

The data goes one way round: envs -> actor -> memory -> learner -> strategies -> actor.
Importing this file imports neither torch nor ray. The files of protocols, backends and errors are
imported when one of their names is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from manyhands.types.data import FIRST_STEP as FIRST_STEP
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
from manyhands.types.data import PlanningDemand as PlanningDemand
from manyhands.types.data import QueueDemand as QueueDemand
from manyhands.types.data import Rollout as Rollout
from manyhands.types.data import RolloutDemand as RolloutDemand
from manyhands.types.data import Rows as Rows
from manyhands.types.data import State as State
from manyhands.types.data import Step as Step
from manyhands.types.data import T as T
from manyhands.types.data import option as option

if TYPE_CHECKING:
    from manyhands.types.backend import Average as Average
    from manyhands.types.backend import Backend as Backend
    from manyhands.types.backend import Channel as Channel
    from manyhands.types.backend import Fault as Fault
    from manyhands.types.backend import Future as Future
    from manyhands.types.backend import Group as Group
    from manyhands.types.backend import Handle as Handle
    from manyhands.types.backend import Job as Job
    from manyhands.types.backend import Keep as Keep
    from manyhands.types.backend import Lock as Lock
    from manyhands.types.backend import ProcessInfo as ProcessInfo
    from manyhands.types.backend import Rank as Rank
    from manyhands.types.backend import Work as Work
    from manyhands.types.errors import BadRequest as BadRequest
    from manyhands.types.errors import Failure as Failure
    from manyhands.types.errors import Refusal as Refusal
    from manyhands.types.protocols import Algorithm as Algorithm
    from manyhands.types.protocols import Environment as Environment
    from manyhands.types.protocols import ImaginedMemory as ImaginedMemory
    from manyhands.types.protocols import Ledger as Ledger
    from manyhands.types.protocols import Memory as Memory
    from manyhands.types.protocols import Model as Model
    from manyhands.types.protocols import Parameters as Parameters
    from manyhands.types.protocols import PlanView as PlanView
    from manyhands.types.protocols import ReplacingLayer as ReplacingLayer
    from manyhands.types.protocols import Source as Source
    from manyhands.types.protocols import Strategy as Strategy
    from manyhands.types.sharing import Budget as Budget
    from manyhands.types.sharing import Live as Live
    from manyhands.types.sharing import Notice as Notice
    from manyhands.types.sharing import Stream as Stream
    from manyhands.types.sharing import Table as Table

_LAZY = {
    "backend": "Average Backend Channel Fault Future Group Handle Job Keep Lock ProcessInfo Rank "
    "Work",
    "errors": "BadRequest Failure Refusal",
    "protocols": "Algorithm Environment ImaginedMemory Ledger Memory Model Parameters PlanView "
    "ReplacingLayer Source Strategy",
    "sharing": "Budget Live Notice Stream Table",
}
_FILE_OF = {name: file for file, names in _LAZY.items() for name in names.split()}

if not TYPE_CHECKING:  # a type checker would accept any name

    def __getattr__(name: str) -> Any:
        if name not in _FILE_OF:
            raise AttributeError(f"module 'manyhands.types' has no attribute {name!r}")
        value = getattr(import_module(f"manyhands.types.{_FILE_OF[name]}"), name)
        globals()[name] = value
        return value
