"""A run: a folder, a worker on a backend, and what is done with both until it is over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from manyhands import (
    checkpoint,
    config,
    display,
    evaluate,
    precision,
    registry,
    rundir,
)
from manyhands.crew import Crew, Solo
from manyhands.evaluate import Evaluation
from manyhands.faultlog import FaultLog
from manyhands.metrics import MetricsFile
from manyhands.progress import Progress, resources
from manyhands.saving import Saving
from manyhands.signals import StopRequests
from manyhands.team import Team
from manyhands.types import BadRequest, Failure, Refusal
from manyhands.worker import MakeEnv, MakeTorso, Worker, choose_device, set_threads

Metrics = dict[str, Any]
EVALUATIONS_SAID_S = 5.0  # one in so many seconds, and every best


class Finished(BadRequest):
    """There is nothing left to do in this run."""


def train(task: str | MakeEnv, *, quiet: bool = False, **options: Any) -> Run:
    """Trains to the end: ``mh.train("lunarlander", steps=100_000, dqn={"lr": 1e-3})``.

    Options are the command's: ``recipe``, ``seed``, ``steps``, ``out``, … and a dict for each
    section. ``task`` may be a function that makes a Gymnasium environment, ``network`` a torso.
    """
    run = Run(task, quiet=quiet, **options)
    run.finish()
    return run


def resume(path: str | Path, *, quiet: bool = False, **options: Any) -> Run:
    """Goes on exactly where a run stopped: ``mh.resume(run.path, steps=200_000)``."""
    run = Run.resumed(Path(path), quiet=quiet, **options)
    run.finish()
    return run


class Run:
    """``for metrics in mh.Run("cartpole"): …`` trains and lets you look on, once a second."""

    def __init__(
        self,
        task: str | MakeEnv,
        *,
        out: str | Path | None = None,
        network: MakeTorso | str | dict[str, Any] | None = None,
        quiet: bool = True,
        resume_if_exists: bool = False,
        **options: Any,
    ) -> None:
        make_env = task if callable(task) else None
        plan = config.from_options(task, network, options)
        torso = network if callable(network) else None
        path = Path(out) if out is not None else None
        if resume_if_exists and path is not None and (path / "config.json").is_file():
            folder = rundir.existing(path)
            plan = precision.as_before(plan, folder.config, choose_device(plan.top.device))
            self._open(folder, plan, make_env, torso, quiet=quiet)
            if folder.has_checkpoint():
                with suppress(Finished):  # a scheduler may start a finished job again
                    self._go_on()
            else:  # it was killed before its first
                self._start()
        else:
            folder = rundir.new(path, plan)
            device = choose_device(plan.top.device)
            plan = precision.settled(plan, device, own_network=torso is not None)
            self._open(folder, plan, make_env, torso, quiet=quiet)
            self._start()

    @classmethod
    def resumed(
        cls,
        path: Path,
        *,
        steps: int = 0,
        minutes: float = 0.0,
        make_env: MakeEnv | None = None,
        network: MakeTorso | None = None,
        allow_code: bool = False,
        quiet: bool = True,
    ) -> Run:
        folder = rundir.existing(path)
        plan = config.from_json(folder.config, allow_code=allow_code)
        plan = precision.as_before(plan, folder.config, choose_device(plan.top.device))
        if steps and minutes:
            raise BadRequest("--steps and --minutes were both given", "give one of them")
        if steps or minutes:  # whoever asks for more wants it, solved or not
            top = replace(plan.top, steps=steps, minutes=minutes, until_solved=False)
            plan = replace(plan, top=top)
        run = cls.__new__(cls)
        run._open(folder, plan, make_env, network, quiet=quiet)
        run._go_on()
        return run

    # --- Before the first step ------------------------------------------------------------------

    def _open(
        self,
        folder: rundir.RunDir,
        plan: config.Plan,
        make_env: MakeEnv | None,
        network: MakeTorso | None,
        *,
        quiet: bool,
    ) -> None:
        self.folder, self.plan, self.path = folder, plan, folder.path
        self._make_env = make_env
        self._commit = rundir.commit()  # of the code now loaded; the checkout may move on
        self.threads, self.interrupted = resources(plan), False
        set_threads(self.threads)
        self.backend = registry.load("backends", plan.backend).make(
            plan.top.seed, hang_s=plan.top.hang_s
        )
        self.crew = self._hire(make_env, network)
        self.progress = Progress(plan, self.crew)
        self._saving = Saving(folder, plan, self.crew, self.progress)
        self._faults = FaultLog(folder, self.crew, self.progress, self._say)
        self._stop = StopRequests()
        self._ended = False
        self._summary: dict[str, Any] | None = None
        self._quiet, self.display = quiet, display.make(quiet=True)
        self._say_evaluation_s = 0.0

    def _hire(self, make_env: MakeEnv | None, network: MakeTorso | None) -> Crew:
        given: dict[str, Any] = {"make_env": make_env, "network": network, "threads": self.threads}
        given["on_nonfinite"] = self.folder.keep_bad_batch
        return (Solo if self.plan.alone else Team)(self.plan, self.backend, **given)

    @property
    def worker(self) -> Worker:
        """The worker of a run that has but one, in this process."""
        if not isinstance(self.crew, Solo):
            raise AttributeError("the workers of this run are in processes of their own")
        return self.crew.worker

    def _start(self) -> None:
        replay = self.crew.memory_bytes
        weights = 16 * self.crew.model.vector.numel()  # parameters, two of Adam's, the target
        # While a checkpoint is written, the one before it still has its replay.
        checkpoint.check_disk(self.path, 2 * (weights + replay * self.plan["checkpoint"].replay))
        self.folder.write_start(self.plan, rundir.command_line())

    def _go_on(self) -> None:
        self.folder.claim()
        if self.plan.sources.get("network.precision") == precision.FORBIDDEN:
            self.progress.notes.append(f"computed in {precision.FORBIDDEN}")
        found = checkpoint.newest(self.folder.checkpoints)
        for problem in found.problems:
            self.folder.add_fault(problem, f"went on from checkpoint {found.step}")
            self.progress.notes.append(problem)
        if found.replay is None:
            self.progress.notes.append("the checkpoint has no replay: the memory fills again")
        try:
            self.crew.restore(found.weights, found.state, found.replay)
            self.progress.restore(found.state["run"])
        except (LookupError, ValueError, RuntimeError, TypeError, AttributeError) as error:
            raise Failure(
                f"the checkpoint does not fit this run: {type(error).__name__}: {error}",
                "resume with the configuration it was made with",
            ) from error
        if self.progress.over():
            self._ended = True
            self._let_go()
            raise Finished(
                f"{self.path} is at {self.crew.agent_steps:,} agent steps: it has finished",
                "give a larger total with --steps, or --minutes",
            )

    # --- Training -------------------------------------------------------------------------------

    def finish(self) -> None:
        for _ in self:
            pass

    def __iter__(self) -> Iterator[Metrics]:
        """Trains; yields about once a second. Whoever stops looking on stops the run, cleanly."""
        if self._ended:
            return
        self._ended = True
        self.display = display.make(quiet=self._quiet)
        self.metrics = MetricsFile(self.path)
        try:
            with self._stop:
                yield from self._train()
        finally:
            self.metrics.close()
            self.display.close()
            self._let_go()

    def _let_go(self) -> None:
        self.crew.close()
        self.backend.close()
        self.folder.let_go()

    def _train(self) -> Iterator[Metrics]:
        for line in self.progress.opening_lines(self.threads):
            self.display.say(line)
        if not self._step():
            self._if_possible(self._saving.snapshot)
        self.progress.begin()
        try:
            for fault in self.backend.run(self.crew.jobs()):
                if fault is not None:
                    self._faults.note(fault)
                looked = self._look()
                if looked is not None:
                    yield looked
                if self.progress.over() or self._stop.asked:
                    break
        except Exception as error:
            self._fail(error)
            raise
        finally:
            if not self.progress.failed:
                closing = self._close()
        yield closing

    def _look(self) -> Metrics | None:
        """After every turn: cheap unless something is to be done."""
        progress = self.progress
        progress.turn()
        self._faults.note_breaks()
        if progress.evaluation_due():
            self._pausing(self._evaluate)
        if progress.snapshot_due():
            self._pausing(lambda: self._if_possible(self._saving.snapshot))
        if progress.checkpoint_due():
            self._pausing(lambda: self._if_possible(self._saving.checkpoint))
        if not progress.report_due():
            return None
        metrics = progress.report()
        self._if_possible(lambda: self._keep(metrics))
        self.display.show(progress.share(), metrics)
        return metrics

    def _keep(self, metrics: Metrics) -> None:
        self.progress.write(metrics, self.metrics)
        self.folder.write_status(self.progress.status("training"))

    def _pausing(self, work: Callable[[], None]) -> None:
        """Does what is not training, off the clock by which rates are taken."""
        with self.progress.paused():
            work()

    def _evaluate(self) -> None:
        steps, episodes = self._step(), self.plan["evaluation"].episodes
        with self.crew.newest(), suppress(evaluate.Interrupted):
            result = self._evaluated(self._goes_on, episodes=episodes)
            best = self.progress.evaluated(result)
            if best:
                self._if_possible(lambda: self._saving.best(steps))
            self._tell(steps, result, best=best)

    def _tell(self, steps: int, result: Evaluation, *, best: bool) -> None:
        wall_s = self.progress.wall_s()
        self.metrics.write(steps, wall_s, {"charts/evaluation_return": result.mean})
        if best or wall_s >= self._say_evaluation_s:
            self._say_evaluation_s = wall_s + EVALUATIONS_SAID_S
            self.display.say(
                f"evaluation at {steps:,} steps: {result.mean:.1f} ± {result.std:.1f} "
                f"over {len(result.scores)} episodes"
            )

    def _if_possible(self, save: Callable[[], None]) -> None:
        """A full disk must not end a run: it is said once, counted, and tried again later."""
        try:
            save()
        except Failure as failure:
            self.folder.add_fault(failure.what, "training goes on; tried again later")
            if failure.what not in self.progress.notes:
                self.progress.notes.append(failure.what)
                self.display.say(f"{failure.what}; training goes on")

    # --- At the end -----------------------------------------------------------------------------

    def _close(self) -> Metrics:
        """However it ends: a checkpoint, a summary, a last look."""
        self.interrupted = self._stop.asked
        self.progress.turn()  # what came with everybody's last turn
        self._faults.note_breaks()
        self._faults.note_last(self.backend)
        with self.progress.paused():
            if self._stop.asked:
                replay = self.crew.preflight if self.plan["checkpoint"].replay else "no replay"
                self.display.say(f"stopping: writing a checkpoint ({replay}); again: at once")
            self._save_at_last()
            self._faults.note_last(self.backend)
        metrics = self.progress.report()
        self._if_possible(lambda: self.progress.write(metrics, self.metrics))
        self.display.show(self.progress.share(), metrics)
        self._summary = self.summary
        self.folder.write_summary(self._summary)
        self.folder.write_status(
            self.progress.status("interrupted" if self.interrupted else "finished")
        )
        for line in self.progress.closing_lines(self.path):
            self.display.say(line)
        if self.interrupted:
            self.display.say(f"go on with: manyhands resume {self.path}")
        return metrics

    def _save_at_last(self) -> None:
        try:
            self._saving.checkpoint()
        except Failure as failure:
            self.folder.add_fault(failure.what, "the checkpoint before is still good")
            self.folder.write_status(self.progress.status("failed"))
            raise

    def _fail(self, error: Exception) -> None:
        self.progress.failed = True
        what = error.what if isinstance(error, Refusal) else f"{type(error).__name__}: {error}"
        self._faults.note_last(self.backend)
        self.folder.add_fault(what, "stopped")
        self.folder.write_status(self.progress.status("failed"))
        try:
            self._saving.checkpoint(fresh_episodes=True)
        except Failure as second:
            self.folder.add_fault(second.what, "the checkpoint before is still good")

    @property
    def summary(self) -> dict[str, Any]:
        """As it is now; once the run has ended, what summary.json says."""
        return self._summary or self.progress.summary(rundir.command_line(), self._commit)

    def evaluate(
        self, *, episodes: int = 100, epsilon: float | None = None, seed: int | None = None
    ) -> Evaluation:
        """Greedy play on environments and seeds of its own; training is not disturbed."""
        with self.crew.newest():
            return self._evaluated(self._attend, episodes=episodes, epsilon=epsilon, seed=seed)

    def _evaluated(
        self,
        attend: Callable[[], bool],
        *,
        episodes: int,
        epsilon: float | None = None,
        seed: int | None = None,
    ) -> Evaluation:
        return evaluate.evaluate(
            self.plan,
            self.crew.algorithm,
            episodes=episodes,
            epsilon=self.plan["evaluation"].epsilon if epsilon is None else epsilon,
            seed=self.plan.top.seed if seed is None else seed,
            threads=self.threads,
            make_env=self._make_env,
            attend=attend,
        )

    def _attend(self) -> bool:
        """While main plays: looks after those who train."""
        for fault in self.backend.attend():
            self._faults.note(fault)
        self.crew.look()
        return True

    def _goes_on(self) -> bool:
        """The same, and whether all are to stop."""
        return self._attend() and not self._stop.asked

    def _step(self) -> int:
        return self.crew.agent_steps

    def _say(self, line: str) -> None:
        self.display.say(line)
