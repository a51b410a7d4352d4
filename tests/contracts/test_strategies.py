"""What every strategy promises one learner: a push is an optimizer's step, no more and no less."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from manyhands import optim
from manyhands.backends.inprocess import InProcess
from manyhands.config import registry
from manyhands.maths import compiled
from manyhands.strategies.parameter_server.parameters import LossStatistics
from manyhands.strategies.parameter_server.shard import cut, shard_slices
from manyhands.types import BadRequest

STRATEGIES = registry.names("strategies")
PLAIN: dict[str, Any] = {
    "adam": lambda p: torch.optim.Adam(p, lr=0, betas=(0.9, 0.999), eps=1e-8, fused=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0, eps=1e-8, fused=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=0, momentum=0.5),
}

DIAGNOSTICS = {
    "gossip": ["charts/consensus_distance"],
    "proximal": ["charts/consensus_distance"],
    "hogwild_plus_plus": ["charts/consensus_distance"],
    "dogwild": ["charts/consensus_distance", "charts/chunks_sent"],
}


def make_model() -> optim.FlatModel:
    torch.manual_seed(5)
    return optim.FlatModel({"a": nn.Linear(3, 2), "b": nn.Linear(2, 4)})


def found(
    strategy: str, model: optim.FlatModel, name: str = "adam", momentum: float = 0.5, **values: Any
) -> Any:
    module = registry.load("strategies", strategy)
    return module.make(
        module.Config(**values),
        backend=InProcess(),
        vector=model.vector,
        parts=model.parts,
        optimizer=optim.Config(name=name, momentum=momentum),
        learners=1,
    )


def make(strategy: str, model: optim.FlatModel, name: str = "adam", **values: Any) -> Any:
    return found(strategy, model, name, **values).join(model, 0)


def gradients(model: optim.FlatModel, part: str, n: int, seed: int = 1) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    size = model.vector[model.parts[part]].numel()
    return [torch.randn(size, generator=generator) for _ in range(n)]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_as_many_pushes_as_the_version_says(strategy: str) -> None:
    model = make_model()
    parameters = make(strategy, model)
    assert parameters.pull(model) == 0
    assert parameters.pull(model) == 0
    for n, (part, gradient) in enumerate(zip("abba", [1, 2, 2, 1], strict=True)):
        pushed = gradients(model, part, 1, gradient)[0]
        parameters.push(pushed, part=part, version=parameters.pull(model), lr=0.1)
        assert parameters.pull(model) == n + 1


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_members_with_defaults(strategy: str) -> None:
    """Callers ask every strategy the same; few differ from the defaults."""
    model = make_model()
    shared = found(strategy, model)
    assert shared.in_step == (strategy in ("allreduce", "proximal"))
    assert shared.join(model, 0).clips == (strategy == "allreduce")
    assert list(shared.diagnostics()) == DIAGNOSTICS.get(strategy, [])


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_it_is_the_plain_optimizer_bit_for_bit(
    strategy: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "library", lambda: None)  # it may round in another way
    model = make_model()
    parameters = make(strategy, model, name)
    before = model.vector.clone()
    mine = nn.Parameter(model.vector[model.parts["b"]].clone())
    plain = PLAIN[name]([mine])
    for n, gradient in enumerate(gradients(model, "b", 20)):
        lr = 0.1 / (n + 1)
        version = parameters.pull(model)
        parameters.push(gradient.clone(), part="b", version=version, lr=lr)
        mine.grad, plain.param_groups[0]["lr"] = gradient, lr
        plain.step()
    parameters.pull(model)
    assert torch.equal(model.vector[model.parts["b"]], mine.data)
    assert not torch.equal(model.vector[model.parts["b"]], before[model.parts["b"]])
    assert torch.equal(model.vector[model.parts["a"]], before[model.parts["a"]])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_compiled_it_is_serial_bit_for_bit(strategy: str) -> None:
    if compiled.library() is None:
        pytest.skip(compiled.found().why)
    found = []
    for name in ("serial", strategy):
        model = make_model()
        parameters = make(name, model)
        for n, gradient in enumerate(gradients(model, "b", 20)):
            version = parameters.pull(model)
            parameters.push(gradient.clone(), part="b", version=version, lr=0.1 / (n + 1))
        parameters.pull(model)
        found.append(model.vector.clone())
    assert torch.equal(*found)


def test_torch_has_an_optimizer_for_each() -> None:
    """RMSprop and RAdam are our own; their tests are those of the room they live in."""
    kinds = next(f for f in optim.Config.__dataclass_fields__.values() if f.name == "name")
    assert set(kinds.metadata["choices"]) == {*PLAIN, "rmsprop", "radam"}


@pytest.mark.parametrize("name", [*PLAIN, "rmsprop", "radam"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_gradient_is_handed_over_by_value(strategy: str, name: str) -> None:
    ends = []
    for spoils in (False, True):
        model = make_model()
        parameters = make(strategy, model, name)
        for gradient in gradients(model, "a", 5):
            parameters.push(gradient, part="a", version=parameters.pull(model), lr=0.1)
            if spoils:
                gradient.fill_(float("nan"))
        parameters.pull(model)
        ends.append(model.vector.clone())
    assert torch.isfinite(ends[1]).all()
    assert torch.equal(*ends)


@pytest.mark.parametrize("name", [*PLAIN, "rmsprop", "radam"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_it_continues_exactly_from_its_state(strategy: str, name: str) -> None:
    whole, half = make_model(), make_model()
    one, shared = make(strategy, whole, name), found(strategy, half, name)
    two = shared.join(half, 0)
    steps = [(part, g) for part in "ab" for g in gradients(whole, part, 6)]

    def push(parameters: Any, model: optim.FlatModel, some: Any) -> None:
        for part, gradient in some:
            version = parameters.pull(model)
            parameters.push(gradient.clone(), part=part, version=version, lr=0.01)
        parameters.pull(model)

    push(one, whole, steps)
    push(two, half, steps[:8])
    kept, weights = shared.state(), {k: array.copy() for k, array in half.named().items()}
    push(two, half, steps[8:9])  # what is kept is a copy
    rest = make_model()
    rest.load(weights)
    shared = found(strategy, rest, name)
    shared.restore(rest.vector.clone(), kept)
    three = shared.join(rest, 0)
    assert three.pull(rest) == 8
    push(three, rest, steps[8:])
    assert three.pull(rest) == one.pull(whole) == 12
    assert torch.equal(rest.vector, whole.vector)


def plain_steps(shared: Any, model: optim.FlatModel, n: int) -> list[tuple[Tensor, int, Tensor]]:
    """n updates of part a at rate 1: gradient, version, and what the server has then."""
    parameters, seen = shared.join(model, 0), []
    version = parameters.pull(model)
    for gradient in gradients(model, "a", n):
        parameters.push(gradient.clone(), part="a", version=version, lr=1.0)
        server = shared.newest()[model.parts["a"]].clone()
        version = parameters.pull(model)
        seen.append((gradient, version, server))
    return seen


def test_gradients_pushed_together_are_as_stale_as_the_first() -> None:
    model = make_model()
    begin = model.vector[model.parts["a"]].clone()
    shared = found("parameter_server", model, "sgd", 0.0, push_every=3)
    seen = plain_steps(shared, model, 7)
    assert [version for _, version, _ in seen] == [0, 0, 1, 1, 1, 2, 2]
    for n, (_, _, server) in enumerate(seen):
        pushed = (n + 1) // 3 * 3
        by_then = begin - sum(gradient for gradient, _, _ in seen[:pushed])
        torch.testing.assert_close(server, by_then)
    assert shared.ledger.staleness() == (0.0, 0.0, 0)  # there is nobody else

    other, late = shared.join(make_model(), 0), shared.join(make_model(), 0)
    step = {"part": "a", "lr": 0.0}
    late.push(torch.zeros_like(begin), version=2, **step)
    for _ in range(3):
        other.push(torch.zeros_like(begin), version=2, **step)
    for _ in range(2):
        late.push(torch.zeros_like(begin), version=3, **step)  # with one that was computed at 2
    shared.newest()  # with everything that was pushed
    assert shared.ledger.staleness()[0] == pytest.approx(1 / 4)  # of four pushes one is one late


def test_between_two_fetches_a_worker_goes_its_own_way() -> None:
    model = make_model()
    shared = found("parameter_server", model, "sgd", 0.0, fetch_every=3)
    begin, parameters = model.vector.clone(), shared.join(model, 0)
    assert parameters.pull(model) == 0
    shared.live[0].vector[model.parts["b"]] += 5  # somebody else's work
    first, second, third = gradients(model, "a", 3)
    for gradient, steps in ((first, first), (second, first + second)):
        parameters.push(gradient.clone(), part="a", version=0, lr=1.0)
        assert parameters.pull(model) == 0
        torch.testing.assert_close(model.vector[model.parts["a"]], begin[model.parts["a"]] - steps)
        assert torch.equal(model.vector[model.parts["b"]], begin[model.parts["b"]])
    parameters.push(third.clone(), part="a", version=0, lr=1.0)
    assert parameters.pull(model) == 3
    assert torch.equal(model.vector, shared.newest())
    torch.testing.assert_close(model.vector[model.parts["b"]], begin[model.parts["b"]] + 5)


def test_a_copy_is_made_again_every_so_many_updates() -> None:
    model = make_model()
    shared = found("hogwild", model, "sgd", 0.0, copy=True, sync_every=3)
    begin = model.vector.clone()
    seen = plain_steps(shared, model, 3)
    assert [version for _, version, _ in seen] == [0, 0, 3]
    assert torch.equal(model.vector, shared.newest())
    assert not torch.equal(model.vector, begin)
    assert shared.ledger.staleness()[0] == pytest.approx((0 + 1 + 2) / 3)


@pytest.mark.parametrize("shards", [1, 2, 3, 7])
def test_shards_cover_everything_once(shards: int) -> None:
    parts = {"a": slice(0, 1000), "b": slice(1000, 1300), "c": slice(1300, 5000)}
    slices = cut(5000, shards, parts)
    assert len(slices) == shards
    covered = [i for where in slices for i in range(where.start, where.stop)]
    assert covered == list(range(5000))


def test_a_shard_with_nothing_to_hold_is_refused() -> None:
    parts = {"a": slice(0, 100), "b": slice(100, 300)}
    assert len(shard_slices(300, 3, parts)) == 3
    with pytest.raises(BadRequest, match="300 parameters are too few for 9 shards") as refused:
        shard_slices(300, 9, parts)
    most = int(refused.value.remedy.split()[-1])
    assert len(shard_slices(300, most, parts)) == most


@pytest.mark.parametrize("name", [*PLAIN, "rmsprop", "radam"])
def test_many_shards_are_one_to_the_last_bit(name: str) -> None:
    ends = []
    for shards in (1, 4):
        torch.manual_seed(5)
        model = optim.FlatModel({"a": nn.Linear(31, 17), "b": nn.Linear(23, 19)})
        parameters = make("parameter_server", model, name, shards=shards)
        for part in "abba":
            for gradient in gradients(model, part, 3):
                parameters.push(gradient, part=part, version=parameters.pull(model), lr=0.1)
        parameters.pull(model)
        ends.append(model.vector.clone())
    assert torch.equal(*ends)


def test_stale_gradients_and_outliers_are_dropped_and_counted() -> None:
    model = make_model()
    shared = found("parameter_server", model, "sgd", max_staleness=2, max_deviations=3.0)
    parameters, size = shared.join(model, 0), model.vector[model.parts["a"]].numel()

    def push(version: int, loss: float) -> None:
        parameters.push(torch.ones(size), part="a", version=version, lr=0.1, loss=loss)

    for n in range(150):
        push(parameters.pull(model), 1.0 + 0.1 * (n % 3))
    version, before = parameters.pull(model), model.vector.clone()
    push(version, 100.0)  # an outlier
    push(version - 3, 1.0)  # too old
    assert parameters.pull(model) == version == 150
    assert torch.equal(model.vector, before)
    assert shared.ledger.staleness() == (0.0, 0.0, 2)
    push(version - 2, 1.0)
    assert parameters.pull(model) == 151
    assert not torch.equal(model.vector, before)


@pytest.mark.parametrize("shards", [1, 4])
def test_a_push_is_one_update_and_one_drop_however_many_shards(shards: int) -> None:
    model = optim.FlatModel({"a": nn.Linear(30, 20)})
    shared = found(
        "parameter_server", model, "sgd", 0.0, shards=shards, max_staleness=2, push_every=2
    )
    parameters, gradient = shared.join(model, 0), torch.zeros(model.vector.numel())

    def push_two(version: int) -> None:
        for _ in range(2):
            parameters.push(gradient, part="a", version=version, lr=0.1)

    for _ in range(5):
        push_two(parameters.pull(model))
    assert (parameters.pull(model), shared.version()) == (5, 5)
    push_two(2)  # too old
    shared.newest()
    assert shared.version() == 5
    assert shared.ledger.staleness() == (0.0, 0.0, 1)


def test_a_gradient_lost_by_a_shard_leaves_no_lasting_staleness() -> None:
    model = optim.FlatModel({"a": nn.Linear(30, 20)})
    shared = found("parameter_server", model, "sgd", 0.0, shards=4, max_staleness=2)
    parameters, gradient = shared.join(model, 0), torch.ones(model.vector.numel())
    for shard, version in enumerate((10, 10, 5, 10)):  # of the third five were lost by a kill
        shared.versions.row(shard)[0] = version
    for version in (5, 6, 7):
        assert parameters.pull(model) == version
        parameters.push(gradient, part="a", version=version, lr=0.1)
        shared.newest()
    assert shared.ledger.staleness() == (0.0, 0.0, 0)
    assert shared.versions.rows()[:, 0].tolist() == [13, 13, 8, 13]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_was_counted_comes_back(strategy: str) -> None:
    model = make_model()
    shared = found(strategy, model)
    parameters = shared.join(model, 0)
    for gradient in gradients(model, "a", 5):
        parameters.push(gradient, part="a", version=parameters.pull(model), lr=0.1)
    shared.newest()
    again = found(strategy, make_model())
    again.restore(shared.newest().clone(), shared.state())
    again.ledger.restore(shared.ledger.state())
    assert again.version() == shared.version() == 5
    assert again.ledger.staleness() == shared.ledger.staleness()


def test_own_statistics_outlive_their_worker_and_a_checkpoint() -> None:
    """Three learners in turns; then others with their ranks, then all from a checkpoint."""

    def learners(shared: Any, model: optim.FlatModel) -> list[Any]:
        return [shared.join(model, index) for index in range(3)]

    def turn(holds: list[Any], model: optim.FlatModel, seed: int) -> None:
        for hold, gradient in zip(holds, gradients(model, "a", 3, seed), strict=True):
            hold.push(gradient, part="a", version=hold.pull(model), lr=0.1)

    def own(model: optim.FlatModel) -> Any:
        module = registry.load("strategies", "hogwild")
        return module.make(
            module.Config(statistics="own"), backend=InProcess(), vector=model.vector,
            parts=model.parts, optimizer=optim.Config(name="adam"), learners=3,
        )  # fmt: skip

    model = make_model()
    shared = own(model)
    holds = learners(shared, model)
    turn(holds, model, 1)
    turn(learners(shared, model), model, 2)
    kept, state = shared.newest().clone(), shared.state()
    turn(holds, model, 3)
    other = make_model()
    resumed = own(other)
    resumed.restore(kept, state)
    turn(learners(resumed, other), other, 3)
    assert torch.equal(resumed.newest(), shared.newest())


def test_losses_that_are_larger_for_good_are_soon_usual() -> None:
    usual, rng = LossStatistics(), np.random.default_rng(1)
    outliers = [usual.is_outlier(0.01 * rng.random(), 5.0) for _ in range(500)]
    assert not any(outliers)
    assert usual.is_outlier(1.0, 5.0)
    later = [usual.is_outlier(0.3 * (1 + rng.random()), 5.0) for _ in range(400)]
    assert later[0]
    assert not any(later[200:])
