"""The jobs of a run's processes: a worker, an actor, a learner."""

from manyhands.roles.jobs.actor import ActorJob as ActorJob
from manyhands.roles.jobs.learner import LearnerJob as LearnerJob
from manyhands.roles.jobs.worker import WorkerJob as WorkerJob
