"""A run from its first step to its summary: trains, evaluates, saves and reports."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from manyhands.config import plans
from manyhands.roles.making import MakeEnv, MakeTorso, name_or_torso
from manyhands.roles.process_setup import set_threads_for
from manyhands.roles.worker import Worker
from manyhands.runs import faults, hooks, machines, messages, opening, provenance, starting
from manyhands.runs.evaluate import Evaluation
from manyhands.runs.evaluator import Evaluator
from manyhands.runs.faults import FaultLog
from manyhands.runs.metrics import MetricsFile
from manyhands.runs.progress import Progress, resources
from manyhands.runs.reports import Reports
from manyhands.runs.saving import Saving
from manyhands.runs.signals import StopRequests
from manyhands.runs.workers import Workers
from manyhands.types import Failure
from manyhands.viewing import display

Metrics = dict[str, Any]


class Run:
    """``for metrics in mh.Run("cartpole"): …`` trains, and yields metrics about once a second.

    ``metrics["evaluations"]`` are the evaluations since the last yield.
    """

    def __init__(
        self,
        task: str | MakeEnv,
        *,
        out: str | Path | None = None,
        network: MakeTorso | str | dict[str, Any] | None = None,
        quiet: bool = True,
        resume_if_exists: bool = False,
        on_report: hooks.Hook | str | None = None,
        command: str = "",
        **options: Any,
    ) -> None:
        self._hook = hooks.load(on_report)
        plan = plans.from_options(task, network, options)
        torso = network if callable(network) else None
        open_it = opening.if_exists if resume_if_exists else opening.new
        opened = open_it(Path(out) if out else None, plan, own_network=torso is not None)
        called = {"out": out, "network": network, "resume_if_exists": resume_if_exists or None}
        self._command = command or provenance.call_text("mh.Run", task, {**called, **options})
        self._open(opened, task if callable(task) else None, torso, quiet=quiet)
        try:
            self._begin(opened)
        except starting.Finished as finished:  # a scheduler may start a finished run again
            display.make(quiet=quiet).say(str(finished))

    @classmethod
    def resumed(
        cls,
        path: Path,
        *,
        make_env: MakeEnv | None = None,
        network: MakeTorso | str | dict[str, Any] | None = None,
        on_report: hooks.Hook | str | None = None,
        quiet: bool = True,
        command: str = "",
        **options: Any,
    ) -> Run:
        """`options`: what changes, as for the command: ``steps``, ``workers``, ``strategy``, …"""
        name, torso = (network, None) if isinstance(network, dict) else name_or_torso(network)
        changes = opening.Changes.of({**options, "network": name})
        opened = opening.resumed(path, changes, torso)
        run = cls.__new__(cls)
        run._hook = hooks.load(on_report)
        run._command = command or provenance.call_text("mh.Run.resumed", path, options)
        run._open(opened, make_env, torso, quiet=quiet)
        run._begin(opened)
        return run

    def _open(
        self,
        opened: opening.Opening,
        make_env: MakeEnv | None,
        network: MakeTorso | None,
        *,
        quiet: bool,
    ) -> None:
        folder, plan = opened.folder, opened.plan
        self.folder, self.plan, self.path = folder, plan, folder.path
        self._commit = provenance.commit()  # now: the checkout may change while we train
        self.threads, self.interrupted = resources(plan), False
        set_threads_for(plan, self.threads, network)
        tell = display.teller(messages.headline(plan), quiet=quiet)
        self.backend = machines.make_backend(plan)
        self.workers = self._make_workers(
            resumes=opened.resumes, make_env=make_env, network=network, tell=tell
        )
        self.progress = Progress(plan, self.workers)
        self.progress.notes += opened.notes
        self._saving = Saving(folder, plan, self.workers, self.progress, self._say)
        self._faults = FaultLog(folder, self.workers, self.progress, self._say)
        self._reports = Reports(self.progress, folder, self._faults)
        self._stop = StopRequests(says=True)
        self._evaluator = Evaluator(
            self.progress,
            self.backend,
            saving=self._saving,
            faults=self._faults,
            stop=self._stop,
            threads=self.threads,
            make_env=make_env,
            say=self._say,
        )
        self._ended = False
        self._summary: dict[str, Any] | None = None
        self._quiet, self.display = quiet, display.make(quiet=True)

    def _make_workers(self, *, resumes: bool, **given: Any) -> Workers:
        given |= {"threads": self.threads, "on_nonfinite": self.folder.keep_bad_batch}
        try:
            workers = Workers(self.plan, self.backend, **given)
            if not resumes:
                workers.prepare()
            return workers
        except BaseException:
            self.backend.close()
            raise

    @property
    def worker(self) -> Worker:
        """The only worker, if it is in this process."""
        return self.workers.worker

    def _begin(self, opened: opening.Opening) -> None:
        """If it is refused, the run frees everything at once, not when it is collected."""
        try:
            if opened.resumes:
                plan = starting.resume(opened, self.progress, self._saving, self._command)
            else:
                plan = starting.begin(opened, self.progress, self._command)
            self.plan = self.workers.plan = plan
        except BaseException:
            self._ended = True
            self._let_go()
            raise

    # --- Training -------------------------------------------------------------------------------

    def finish(self) -> None:
        for _ in self:
            pass

    def __iter__(self) -> Iterator[Metrics]:
        """Trains; yields about once a second. Leaving the loop stops the run and saves it."""
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
        self.workers.close()
        self.backend.close()
        self.folder.let_go()

    def _train(self) -> Iterator[Metrics]:
        for line in messages.opening_lines(self.progress, self.threads):
            self.display.say(line)
        if not self._step():
            self._snapshot()
        self.progress.begin()
        self._reports.begin()
        self._reports.write_status("training")  # before an environment can end this process
        running = self.backend.run(self.workers.jobs())
        try:
            for fault in running:
                if fault is not None:
                    self._faults.note(fault)
                looked = self._look()
                if looked is not None:
                    yield looked
                if self.progress.over() or self._stop.asked:
                    break
        except BaseException as error:
            if not isinstance(error, GeneratorExit):  # the caller has left the loop
                self._fail(error, running.close)
            raise
        finally:
            if not self.progress.failed:
                closing = self._close(running.close)
        yield closing

    def _look(self) -> Metrics | None:
        """After every turn: does what is due. Cheap if nothing is."""
        progress, schedule = self.progress, self.progress.schedule
        progress.turn()
        self._faults.note_breaks()
        if schedule.evaluation_due(self._step()):
            self._pausing(self._evaluate)
        if schedule.snapshot_due(self._step()):
            self._pausing(self._snapshot)
        if schedule.checkpoint_due():
            self._pausing(self._checkpoint)
        if not schedule.report_due():
            return None
        metrics = self._reports.metrics()
        schedule.reported()
        hooks.ask(self._hook, metrics, self)
        self._reports.write(metrics, self.metrics)
        self._reports.write_status("training")
        self.display.show(progress.share(), metrics)
        return metrics

    def _snapshot(self) -> None:
        if not self._faults.attempt("snapshot", self._saving.snapshot):
            self.progress.schedule.retry_snapshot(self._step())

    def _checkpoint(self) -> None:
        if not self._faults.attempt("checkpoint", self._saving.checkpoint):
            self.progress.schedule.retry_checkpoint()

    def _pausing(self, work: Callable[[], None]) -> None:
        """Does work that is not training and does not count for the rates."""
        with self.progress.paused():
            work()

    def _evaluate(self) -> None:
        self._evaluator.periodic(self.metrics)

    def _close(self, leave: Callable[[], None]) -> Metrics:
        """However the run ends: writes a checkpoint, the summary and the last metrics."""
        self.interrupted = self._stop.asked
        self._stop.heard()
        self.progress.turn()  # takes in what the last turns sent
        self._faults.note_breaks()
        with self.progress.paused():
            if self._stop.asked:
                replay = self.workers.preflight if self.plan.checkpoint.replay else "no replay"
                self.display.say(f"stopping: writing a checkpoint ({replay}); again: stop at once")
            lost = self._saving.last(leave)
            self.progress.turn()
            self._faults.note_last(self.backend)
        metrics = self._reports.metrics()
        self._reports.write(metrics, self.metrics)
        self.display.show(self.progress.share(), metrics)
        self._summary = self.summary
        try:
            self.folder.write_summary(self._summary)
        except Failure as failure:
            lost = lost or failure
        ended = "interrupted" if self.interrupted else "finished"
        self._reports.write_status("failed" if lost else ended)
        if lost:
            raise lost
        for line in messages.closing_lines(self.progress, self.folder.shown):
            self.display.say(line)
        if self.interrupted:
            self.display.say(f"continue with: manyhands resume {self.folder.shown}")
        return metrics

    def _fail(self, error: BaseException, leave: Callable[[], None]) -> None:
        """Records an error. Nothing here may raise another one and hide the first."""
        self.progress.failed = True
        self._faults.note_last(self.backend)
        self.folder.add_fault(faults.sentence(error), "stopped")
        self._reports.write_status("failed")
        self._saving.last(leave)
        self._reports.write(self._reports.metrics(), self.metrics)

    @property
    def summary(self) -> dict[str, Any]:
        """As of now; after the end, the content of summary.json."""
        return self._summary or self._reports.summary(self._command, self._commit)

    def evaluate(
        self, *, episodes: int = 100, epsilon: float | None = None, seed: int | None = None
    ) -> Evaluation:
        """Plays greedily on separate environments and seeds. Training is not disturbed."""
        return self._evaluator.on_request(episodes=episodes, epsilon=epsilon, seed=seed)

    def __repr__(self) -> str:
        return messages.run_text(self.progress, self.folder.shown)

    def _step(self) -> int:
        return self.workers.agent_steps

    def _say(self, line: str) -> None:
        self.display.say(line)
