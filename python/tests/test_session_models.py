"""What ordinary models and loops do: frozen, unused, tied and sparse parameters, buffers, checkpoints,
evaluation, compilation, gradient accumulation."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from typing import Any

import paceline
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from workers import (
    Server,
    alone,
    assert_close,
    assert_identical,
    by_round,
    data,
    fit,
    fit_several,
    mlp,
    seeded,
    together,
    values,
)


def test_a_frozen_parameter_keeps_its_value_and_has_no_gradient(serve: Any) -> None:
    server = serve(2, policy="full")

    def worker(_: int) -> Any:
        model = mlp()
        model[0].weight.requires_grad_(False)
        before = model[0].weight.clone()
        fit(server, model, torch.optim.SGD(model.parameters(), lr=0.1), policy="full")
        assert model[0].weight.grad is None
        assert torch.equal(model[0].weight, before)
        assert not torch.equal(model[0].bias, mlp()[0].bias)
        return values(model)

    assert_identical(together(2, worker))


class Branches(nn.Module):
    """Two layers, each used on demand, and one that no worker uses."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.sometimes, self.never = (nn.Linear(6, 1) for _ in range(3))

    def forward(self, x: torch.Tensor, both: bool) -> torch.Tensor:
        out: torch.Tensor = self.always(x)
        return out + self.sometimes(x) if both else out


def test_an_unused_parameter_gets_the_mean_if_one_worker_used_it_and_none_if_no_worker_did(
    serve: Any,
) -> None:
    server = serve(2, policy="full")

    def worker(number: int) -> Any:
        model = seeded(Branches())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        session = paceline.init(model, optimizer, server=server.address, policy="full", epochs=1)
        own, means = [], []
        for _, x, y in session.loader(data(), batch_size=4):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x, both=number == 0), y)
            if number == 0:
                own += torch.autograd.grad(loss, [model.sometimes.weight], retain_graph=True)
            loss.backward()
            assert model.never.weight.grad is None
            means.append(model.sometimes.weight.grad.clone())
            optimizer.step()
        session.close()
        return own, means

    (own, means), (_, same) = together(2, worker)
    assert_identical([means, same])
    assert_close(means, [gradient / 2 for gradient in own])


def test_tied_weights_are_one_parameter(serve: Any) -> None:
    server = serve(2, policy="full")

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode, self.decode = nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False)
            self.decode.weight = self.encode.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.decode(self.encode(x)).sum(1, keepdim=True)

    def worker(_: int) -> Any:
        model = seeded(Tied())
        return fit(server, model, torch.optim.SGD(model.parameters(), lr=0.01), policy="full")

    fitted = together(2, worker)
    model = seeded(Tied())
    expected = alone(model, torch.optim.SGD(model.parameters(), lr=0.01), by_round(fitted))
    assert_close(fitted[0].values, expected)


def test_sparse_gradients_are_densified(serve: Any) -> None:
    server = serve(2, policy="full")

    def worker(_: int) -> Any:
        model = seeded(nn.Embedding(48, 3, sparse=True))
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        session = paceline.init(model, optimizer, server=server.address, policy="full", epochs=1)
        for index, _x, _y in session.loader(data(), batch_size=4):
            optimizer.zero_grad()
            model(index).sum(1).mean().backward()
            assert not model.weight.grad.is_sparse
            optimizer.step()
        session.close()
        return values(model)

    states = together(2, worker)
    assert_identical(states)
    # Each of 8 samples of a round moves its row by 1/8.
    assert_close(states[0], [values(seeded(nn.Embedding(48, 3)))[0] - 1 / 8], 1e-4)


def test_running_statistics_of_batch_norm_are_the_means_over_the_workers(serve: Any) -> None:
    server = serve(2, policy="full")

    def worker(_: int) -> Any:
        model = seeded(nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)))
        norm, own, after = model[1], [], []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        session = paceline.init(model, optimizer, server=server.address, policy="full", epochs=1)
        for _, x, y in session.loader(data(), batch_size=4):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            own.append(norm.running_mean.clone())
            loss.backward()
            optimizer.step()
            after.append(norm.running_mean.clone())
        session.close()
        return own, after, norm.running_var.clone()

    (own0, after, var), (own1, same, var1) = together(2, worker)
    assert_identical([[*after, var], [*same, var1]])
    assert_close(after, [(a + b) / 2 for a, b in zip(own0, own1)])


def test_a_state_dict_saved_and_loaded_between_steps_changes_nothing(serve: Any) -> None:
    server = serve(2, policy="full")

    def worker(number: int) -> Any:
        model = mlp()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        session = paceline.init(model, optimizer, server=server.address, policy="full", epochs=1)
        rounds = []
        for index, x, y in session.loader(data(), batch_size=4):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            rounds.append(index.tolist())
            if number == 0:
                file = io.BytesIO()
                torch.save([model.state_dict(), optimizer.state_dict()], file)
                file.seek(0)
                held = torch.load(file)
                model.load_state_dict(held[0])
                optimizer.load_state_dict(held[1])
        session.close()
        return rounds, values(model)

    (first, found), (second, other) = together(2, worker)
    assert_identical([found, other])
    model = mlp()
    rounds = [a + b for a, b in zip(first, second, strict=True)]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    assert_close(found, alone(model, optimizer, rounds), 1e-3)


def test_an_evaluation_takes_part_in_no_round(serve: Any) -> None:
    server = serve(2, policy="full")

    def evaluate(model: nn.Module, session: paceline.Session) -> None:
        before = session.round
        model.eval()
        with torch.no_grad():
            model(data().tensors[1])
        model.train()
        assert session.round == before

    def worker(_: int) -> Any:
        model = mlp()
        look: Callable[[paceline.Session], None] = lambda session: evaluate(model, session)  # noqa: E731
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return fit(server, model, optimizer, after_backward=look, policy="full")

    assert len(by_round(together(2, worker))) == 6


def test_a_compiled_model_trains_as_the_plain_one(serve: Any) -> None:
    server = serve(1, policy="full")
    model = mlp()
    compiled: Any = torch.compile(model, backend="aot_eager")
    fitted = fit(server, compiled, torch.optim.SGD(model.parameters(), lr=0.1), policy="full")
    assert fitted.rounds[0][0].used
    plain = mlp()
    expected = alone(plain, torch.optim.SGD(plain.parameters(), lr=0.1), by_round([fitted]))
    assert_close(fitted.values, expected)


@pytest.mark.parametrize("compiled_first", [True, False])
def test_a_loop_over_its_own_data_does_not_break_the_graph_of_a_compiled_model(
    serve: Any, compiled_first: bool
) -> None:
    torch._dynamo.reset()
    model = mlp()
    compiled: Any = torch.compile(model, backend="eager", fullgraph=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = paceline.init(
        compiled if compiled_first else model, optimizer, server=serve(1).address, batch_size=4
    )
    _, x, y = data().tensors
    for at in range(0, 12, 4):
        optimizer.zero_grad()
        nn.functional.mse_loss(compiled(x[at : at + 4]), y[at : at + 4]).backward()
        assert session.last is not None and session.last.used
        optimizer.step()
    session.close()


def test_a_fused_optimizer_steps_in_the_layout_channels_last_as_it_does_alone(serve: Any) -> None:
    x = torch.randn(8, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    x = x.contiguous(memory_format=torch.channels_last)

    def train(address: str | None) -> list[torch.Tensor]:
        layers = [nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3)]
        model: Any = seeded(nn.Sequential(*layers)).to(memory_format=torch.channels_last)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
        session = None
        if address is not None:
            session = paceline.init(model, optimizer, server=address, batch_size=8)
        for _ in range(5):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        if session is not None:
            session.close()
        return values(model)

    assert_close(train(serve(1).address), train(None))


def accumulating(server: Server, samples: int) -> tuple[list[list[int]], list[torch.Tensor]]:
    """A loop that steps after every second batch."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = paceline.init(
        model, optimizer, server=server.address, policy="full", epochs=1, accumulate=2
    )
    rounds: list[list[int]] = []
    for at, (index, x, y) in enumerate(session.loader(data(samples), batch_size=4)):
        loss = nn.functional.mse_loss(model(x), y) / 2
        if at % 2 == 0:
            rounds.append(index.tolist())
            optimizer.zero_grad()
            with session.no_sync():
                loss.backward()
            continue
        rounds[-1] += index.tolist()
        loss.backward()
        optimizer.step()
    session.close()
    return rounds, values(model)


def test_accumulated_gradients_are_one_contribution(serve: Any) -> None:
    server = serve(2, policy="full")
    (first, found), (second, other) = together(2, lambda _: accumulating(server, 48))
    assert_identical([found, other])
    assert [len(samples) for samples in first] == [8, 8, 8]
    rounds = [a + b for a, b in zip(first, second, strict=True)]
    model = mlp()
    assert_close(found, alone(model, torch.optim.SGD(model.parameters(), lr=0.1), rounds))


def test_accumulation_gets_all_its_batches_from_a_portion_that_is_small(serve: Any) -> None:
    server = serve(1, policy="full")
    rounds, _ = accumulating(server, 20)
    assert [len(samples) for samples in rounds] == [8, 8, 4]
    assert sorted(sum(rounds, [])) == list(range(20))


def test_accumulation_of_fewer_samples_than_batches_repeats_some_and_keeps_their_weight(serve: Any) -> None:
    server = serve(1, policy="full")
    rounds, found = accumulating(server, 9)
    assert [len(samples) for samples in rounds] == [8, 2]
    assert len(set(rounds[1])) == 1
    model, (_, x, y) = mlp(), data(9).tensors
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for samples in (rounds[0], rounds[1][:1]):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x[samples]), y[samples]).backward()
        optimizer.step()
    assert_close(found, values(model))


@pytest.mark.parametrize("mode", ["mean", "server"])
def test_several_models_with_a_backward_pass_each_make_one_contribution(
    serve: Any, mode: str
) -> None:
    """A generator, and a critic whose loss has a backward pass of its own, as in a GAN."""
    server = serve(2, policy="full")
    _, x, y = data().tensors

    def make() -> tuple[list[nn.Module], list[torch.optim.Optimizer]]:
        models = [mlp(), seeded(nn.Linear(1, 1))]
        return models, [torch.optim.SGD(model.parameters(), lr=0.05) for model in models]

    def train(models: list[nn.Module], samples: list[int], no_sync: Any) -> None:
        generator, critic = models
        fake = generator(x[samples])
        loss = (critic(fake.detach()) - critic(y[samples])).square().mean()
        with no_sync():
            loss.backward()
        critic.requires_grad_(False)
        (critic(fake) - 1.0).square().mean().backward()
        critic.requires_grad_(True)

    fit_several(server, make, train, mode=mode)


class Checkpointed(nn.Module):
    """The network of :func:`mlp`, which the backward pass computes again."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = mlp()
        self.passes = 0
        self.inner[0].register_forward_hook(self._count)

    def _count(self, *_: Any) -> None:
        self.passes += 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = checkpoint(self.inner, x, use_reentrant=False)
        return out


def test_a_checkpointed_model_trains_as_the_plain_one(serve: Any) -> None:
    server = serve(2, policy="full")

    def worker(_: int) -> Any:
        model = Checkpointed()
        fitted = fit(server, model, torch.optim.SGD(model.parameters(), lr=0.1), policy="full")
        assert model.passes == 2 * len(fitted.rounds)
        return fitted

    fitted = together(2, worker)
    assert_identical([each.values for each in fitted])
    plain = mlp()
    expected = alone(plain, torch.optim.SGD(plain.parameters(), lr=0.1), by_round(fitted))
    assert_close(fitted[0].values, expected)


class Backbone(nn.Module):
    """A frozen layer and a buffer whose values differ between workers, under a head that is trained."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.frozen, self.norm, self.head = nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)
        self.register_buffer("scale", torch.full((4,), 1.0 + number))
        seeded(self)
        nn.init.constant_(self.frozen.weight, 0.1 * (1 + number))
        self.frozen.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.norm(self.frozen(x)) * self.scale)
        return out


@pytest.mark.parametrize("mode", ["mean", "server"])
@pytest.mark.parametrize("joins", ["together", "late"])
def test_frozen_parameters_and_buffers_are_those_of_the_first_worker(
    serve: Any, mode: str, joins: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve(2 if joins == "together" else 1, policy="static:1")
    first_joined, second_joined = threading.Event(), threading.Event()

    def worker(number: int) -> Any:
        model = Backbone(number)
        optimizer = torch.optim.SGD(model.head.parameters(), lr=0.01)
        session = paceline.init(model, optimizer, server=server.address, mode=mode, epochs=1)
        if number == 1:
            assert first_joined.wait(60)
        loader = session.loader(data(400_000), batch_size=4)
        if joins == "together":
            first_joined.set()
        steps = 0
        for _, x, y in loader:
            if number == 1:
                second_joined.set()
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            steps += 1
            first_joined.set()
            if steps >= 3 and second_joined.is_set():
                break
        session.close()
        return [model.frozen.weight.detach(), model.frozen.bias.detach(), model.scale]

    first, second = together(2, worker)
    assert_identical([first, second])
    assert torch.equal(first[2], torch.ones(4))
    if joins == "together":
        assert "in frozen parameters or buffers: it takes the run's" in caplog.text


def test_frozen_values_that_agree_are_not_taken_from_the_run(
    serve: Any, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve(2, policy="full")

    def worker(_: int) -> Any:
        model = Backbone(0)
        # Statistics of a layer that has seen other data than that of the other worker.
        model.norm(torch.randn(8, 4))
        optimizer = torch.optim.SGD(model.head.parameters(), lr=0.01)
        session = paceline.init(model, optimizer, server=server.address, epochs=1)
        loader = session.loader(data(), batch_size=4)
        taken = session._membership.takes_state
        next(iter(loader))
        session.close()
        return taken

    assert together(2, worker) == [False, False]
    assert "other values" not in caplog.text
