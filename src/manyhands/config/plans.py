"""Plans: every value of a run and its origin, from TOML, flags, Python or config.json.

A layer is ``{section: {field: value}}``. The section ``run`` holds options without a section.
Precedence: defaults < recipe < task < the task's section for the recipe < what the recipe ``keeps``
< flags. A recipe keeps the values that its paper prescribes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manyhands import envs
from manyhands.config import checks, kept_code, presets, registry, runfiles, sections
from manyhands.config.kept_code import Kept
from manyhands.config.presets import Layer
from manyhands.config.sections import SECTIONS, Checkpoint, Evaluation, Top
from manyhands.envs import Config as EnvConfig
from manyhands.memory import Config as MemoryConfig
from manyhands.networks.config import Config as NetworkConfig
from manyhands.types import BadRequest, Options, users_files

if TYPE_CHECKING:
    from manyhands.optim import Config as OptimConfig

LARGEST_FILE = 1 << 20  # bytes of a config.json; real ones are far smaller
LONGEST_TASK = 200  # characters
OPTIONAL = ("algorithms", "strategies", "backends")  # their members have a section when in use
OWN = "own/"  # an environment that a Python function makes


@dataclass(frozen=True)
class Plan:
    """Every value of a run, and where it came from."""

    task: str
    top: Top
    env: EnvConfig
    memory: MemoryConfig
    network: NetworkConfig
    optim: OptimConfig
    checkpoint: Checkpoint
    evaluation: Evaluation
    algorithm: Options  # a `Config` of the algorithm's own file
    strategy: Options  # a `Config` of the strategy's own file
    sources: Mapping[str, str]  # "dqn.lr" -> "task lunarlander"
    place: Options | None = None  # a `Config` of the backend's own file, if it has one
    code: tuple[Kept, ...] = ()  # copies of the user's files
    home: str = ""  # the run's folder, which holds them
    notes: tuple[str, ...] = ()  # lines to print

    @property
    def sections(self) -> dict[str, Any]:
        """Every section by its name in files and on the command line: ``--dqn.lr`` is in "dqn"."""
        return {
            **{name: getattr(self, name) for name in SECTIONS},
            registry.section_name(self.top.algorithm): self.algorithm,
            registry.section_name(self.top.strategy): self.strategy,
            **({} if self.place is None else {registry.section_name(self.top.backend): self.place}),
        }

    @property
    def alone(self) -> bool:
        """One worker, in the main process."""
        return self.top.workers == 1 and not self.top.actors and self.backend == "inprocess"

    @property
    def backend(self) -> str:
        if self.top.backend != "auto":
            return self.top.backend
        return "processes" if self.top.workers > 1 or self.top.actors else "inprocess"

    @property
    def processes(self) -> int:
        """Workers, or actors and learners."""
        return self.top.actors + self.top.learners if self.top.actors else self.top.workers

    @property
    def hosted(self) -> int:
        """How many processes the strategy starts."""
        return 0 if self.alone else self.strategy.hosted_processes

    def flag(self, options: Options, name: str) -> str:
        return f"--{self._section_of(options)}.{name}"

    def is_from_flag(self, options: Options, name: str) -> bool:
        return self.sources.get(f"{self._section_of(options)}.{name}") == "flag"

    def _section_of(self, options: Options) -> str:
        return next(name for name, section in self.sections.items() if section is options)

    def as_layer(self) -> dict[str, dict[str, Any]]:
        made = {name: dataclasses.asdict(config) for name, config in self.sections.items()}
        return {"run": dataclasses.asdict(self.top), **made}


# --- Resolving ----------------------------------------------------------------------------------


def resolve(task: str, flags: Layer, *, table: dict[str, Any] | None = None) -> Plan:
    """What ``train TASK`` with these flags means."""
    table = dict(table if table is not None else presets.task_table(task))
    for_recipe = table.pop("for", {})
    asked = flags.get("run", {})
    recipe = str(asked.get("recipe") or table.get("recipe", ""))
    if recipe not in presets.names("recipes"):
        raise registry.unknown("--recipe", recipe, presets.names("recipes"))
    how = presets.read("recipes", recipe)
    layers: list[tuple[str, Layer]] = [
        (f"recipe {recipe}", presets.layer_of(how)),
        (f"task {task}", presets.layer_of(table)),
        (f"task {task} for {recipe}", presets.layer_of(for_recipe.get(recipe, {}))),
        (f"recipe {recipe}, which keeps it", presets.kept(recipe, how)),
        ("flag", {**flags, "run": {k: v for k, v in asked.items() if k != "recipe" or v}}),
    ]
    return _build(_shown(task), layers)


def _shown(task: str) -> str:
    """The task's name. A file may have any name, but this one is printed and read again."""
    name = "".join(letter for letter in users_files.short(task) if letter.isprintable())
    return name[-LONGEST_TASK:]


def from_options(task: Any, network: Any, options: Mapping[str, Any]) -> Plan:
    """What ``mh.train(task, network=…, **options)`` means: dicts are sections.

    A task may be a function that makes an environment; a network may be a class.
    """
    flags: dict[str, dict[str, Any]] = {"run": {}}
    for name, value in options.items():
        if isinstance(value, dict):
            flags[name] = value
        else:
            flags["run"][name] = value
    if isinstance(network, str):
        flags["network"] = {"torso": network}
    elif isinstance(network, dict):
        flags["network"] = network
    if isinstance(task, str):
        return resolve(task, flags)
    if not callable(task):
        raise _not_a_task(task)
    name = getattr(task, "__qualname__", type(task).__name__)
    table = presets.read("tasks", "_gym")
    table["env"] = {"id": f"{OWN}{name}"}
    return resolve(name, flags, table=table)


def _not_a_task(task: Any) -> BadRequest:
    kind = type(task).__name__
    if not (hasattr(task, "reset") and hasattr(task, "step")):
        return BadRequest(
            f"a task cannot be of type {kind}", "give a name, or a function of no arguments"
        )
    spec = getattr(task, "spec", None)
    example = f'gymnasium.make("{spec.id}")' if spec else "MyEnv()"
    return BadRequest(
        "got an environment object; a run needs a function that makes environments",
        f"pass a function: mh.train(lambda: {example})",
    )


def _build(task: str, layers: list[tuple[str, Layer]]) -> Plan:
    sources: dict[str, str] = {}
    top = sections.fill("run", Top, layers, sources)
    known = sections.types_of(top.algorithm, top.strategy, top.backend)
    optional = {name for room in OPTIONAL for name in registry.names(room)}
    for source, layer in layers:
        for name in layer:
            if name != "run" and name not in known and not (source != "flag" and name in optional):
                raise sections.unused(name, known, optional)
    made = {name: sections.fill(name, kind, layers, sources) for name, kind in known.items()}
    plan = Plan(
        task=task,
        top=_roles(top, sources),
        **{name: made[name] for name in SECTIONS},
        algorithm=made[registry.section_name(top.algorithm)],
        strategy=made[registry.section_name(top.strategy)],
        place=made.get(registry.section_name(top.backend)),
        sources=sources,
    )
    if plan.top.device == "auto" and checks.cpu_only(plan):
        plan = replace(plan, top=replace(plan.top, device="cpu"))
    checks.check(plan)
    envs.check(plan.env, own=plan.env.id.startswith(OWN))
    return plan


def _roles(top: Top, sources: Mapping[str, str]) -> Top:
    """In a recipe with actors, ``--workers N`` means N actors, or N learners if the environment
    exists once. In a recipe with workers, ``--actors N`` replaces them.
    """
    workers, actors = (sources.get(f"run.{name}") == "flag" for name in ("workers", "actors"))
    if not top.actors:
        return top
    if workers and actors:
        raise BadRequest("--workers and --actors were both given", "give one of them")
    if workers:
        if top.single_actor:
            return replace(top, learners=top.workers, workers=1)
        return replace(top, actors=top.workers, workers=1)
    return replace(top, workers=1) if actors else top


# --- Files ----------------------------------------------------------------------------------------


def to_json(plan: Plan) -> dict[str, Any]:
    kept = {"code": kept_code.to_json(plan.code)} if plan.code else {}
    return {"task": plan.task, "config": plan.as_layer(), "sources": dict(plan.sources), **kept}


def from_json(
    path: Path,
    *,
    allow_code: bool,
    network: str = "",
    algorithm: str = "",
    flags: Layer | None = None,
) -> Plan:
    """Reads a run's config.json. Code that it names (my.py, module:Env-v0) must be allowed.

    A `network` or `algorithm` replaces the run's. `flags`: the values to resume with.
    """
    try:
        with runfiles.opened(path.parent) as folder:
            table = runfiles.read_json(folder, path.name, LARGEST_FILE)
        task, layer = str(table["task"]), {k: dict(v) for k, v in dict(table["config"]).items()}
        kept = kept_code.from_json(table.get("code", []))
        typed = kept_code.override(layer, network=network, algorithm=algorithm)
        code = kept_code.named(layer, besides=typed)
        if not task.isprintable() or len(task) > LONGEST_TASK:
            raise ValueError("no task has such a name")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        why = runfiles.reason(error) if isinstance(error, OSError) else str(error)
        raise BadRequest(
            f"{path} is not a run's configuration: {type(error).__name__}: {why}",
            "give the folder that `manyhands train` made",
        ) from None
    if code and not allow_code:
        raise BadRequest(
            f"{path} names Python code: {', '.join(code)}",
            "add --allow-code if you trust the run",
        )
    values, notes = kept_code.chosen(path.parent, layer, kept)
    for (section, field), value in values.items():
        layer[section][field] = value
    if (flags or {}).get("run", {}).get("actors") == 0:  # learners go with their actors
        layer["run"]["learners"] = 1
    plan = _build(task, [("config.json", layer), ("flag", flags or {})])
    return replace(plan, code=kept, home=str(path.parent.resolve()), notes=tuple(notes))
