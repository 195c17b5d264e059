"""A worker that falls behind the run, at a chosen point of its loop: what it sends, what it finds in ``.grad``,
and what its optimizers do.

Hashes are off, so nothing repairs a replica that went wrong.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import paceline
import pytest
import torch
from torch import Tensor, nn
from workers import assert_close, data, mlp, seeded, together, values, wait_until

STEPS = 6
SAMPLES = 40_000


class Spy:
    """The native worker, with a note of the gradients that it took."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self.sent: list[tuple[int, Tensor]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._worker, name)

    def write(self, at: int, given: Any, scale: float) -> Any:
        wanted = self._worker.write(at, given, scale)
        if wanted is not None:
            self.sent.append((at, torch.from_numpy(given.copy())))
        return wanted


@dataclass
class Gate:
    """Lets the fast worker train, or holds it between two of its steps."""

    open: threading.Event = field(default_factory=threading.Event)
    holds: threading.Event = field(default_factory=threading.Event)
    done: threading.Event = field(default_factory=threading.Event)

    def hold(self, session: paceline.Session) -> None:
        """Holds the fast worker, which gives others the record of its step and its state meanwhile."""
        if not self.open.is_set():
            session._update.end_step()
        while not self.open.wait(0.002) and not self.done.is_set():
            self.holds.set()
            session._membership.replicating().serve(session.round)


@dataclass
class Loop:
    """A worker's training loop."""

    session: paceline.Session
    model: nn.Module
    optimizers: list[torch.optim.Optimizer]
    scaler: Any
    gate: Gate
    states: dict[int, list[Tensor]] = field(default_factory=dict)
    """The parameters of each version that the loop has seen."""

    def batches(self, stream: bool) -> Iterator[tuple[Tensor, Tensor]]:
        _, x, y = data().tensors
        if stream:
            while True:
                at = int(torch.randint(0, 44, ()))
                yield x[at : at + 4], y[at : at + 4]
        for _, x, y in self.session.loader(data(SAMPLES), batch_size=4):
            yield x, y

    def fall_behind(self, rounds: int = 1) -> None:
        """Lets the fast worker close some rounds, and holds it then."""
        # The other one may need the record of this one's step.
        self.session._update.end_step()
        worker, gate = self.session._membership.connected(), self.gate
        gate.open.set()
        wait_until(lambda: worker.newest() >= worker.taken() + rounds)
        gate.holds.clear()
        gate.open.clear()
        wait_until(gate.holds.is_set)

    def behind(self, rounds: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Some batches of the loader. Each is computed when this worker is behind by as many rounds."""
        for step, (x, y) in enumerate(self.batches(stream=False)):
            if step == STEPS:
                return
            for optimizer in self.optimizers:
                optimizer.zero_grad()
            self.fall_behind(rounds)
            yield x, y
            self.note()

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.mse_loss(self.model(x), y)

    def note(self) -> None:
        self.states[self.session.round] = values(self.model)

    def watch_replays(self) -> list[bool]:
        """Replays from now on, and whether each made what its record says."""
        replica, outcomes = self.session._replica, []
        replay = replica.replay

        def watched(record: Any) -> bool:
            outcomes.append(replay(record))
            return outcomes[-1]

        replica.replay = watched  # type: ignore[method-assign]
        return outcomes


def run(
    address: str,
    slow: Callable[[Loop], Any],
    *,
    stream: bool = False,
    make: Callable[[nn.Module], list[torch.optim.Optimizer]] = lambda model: [
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.1)
    ],
    model: Callable[[], nn.Module] = mlp,
    change: Callable[[nn.Module], object] = lambda _: None,
    step: Callable[[Loop, torch.optim.Optimizer], None] = lambda _, optimizer: optimizer.step(),
    scaled: bool = False,
    **settings: Any,
) -> Any:
    """Trains as a fast worker until ``slow`` has ended on the other one; returns its outcome.

    Where both have the parameters after a version, they must be identical.
    """
    gate = Gate()

    def fast(loop: Loop) -> None:
        for x, y in loop.batches(stream):
            for optimizer in loop.optimizers:
                optimizer.zero_grad()
            loss = loop.loss(x, y)
            # This worker catches up before the forward pass.
            loop.note()
            (loop.scaler.scale(loss) if scaled else loss).backward()
            change(loop.model)
            for optimizer in loop.optimizers:
                loop.scaler.step(optimizer) if scaled else step(loop, optimizer)
            if scaled:
                loop.scaler.update()
            loop.note()
            gate.hold(loop.session)
            if gate.done.is_set():
                return

    def worker(number: int) -> Any:
        made = model()
        optimizers = make(made)
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=3) if scaled else None
        session = paceline.init(
            made, optimizers, None, scaler, server=address, policy="static:1", hash_every=0,
            **{**({"batch_size": 4} if stream else {"epochs": 1}), **settings},
        )  # fmt: skip
        loop = Loop(session, made, optimizers, scaler, gate)
        try:
            return (slow if number == 0 else fast)(loop), loop.states
        finally:
            gate.done.set()
            session.close()

    (outcome, states), (_, others) = together(2, worker)
    shared = states.keys() & others.keys()
    assert shared or not states
    for version in shared:
        for a, b in zip(states[version], others[version], strict=True):
            assert torch.equal(a, b), f"parameters after version {version}"
    return outcome


def own_gradients(loop: Loop, loss: Tensor) -> dict[int, Tensor]:
    """The gradients of a loss, by their place among what is sent."""
    slots = loop.session._replica.flat.params
    grads = torch.autograd.grad(loss, [slot.tensor for slot in slots], retain_graph=True)
    return {slot.offset: grad.reshape(-1) for slot, grad in zip(slots, grads)}


def send_and_compare(loop: Loop, loss: Tensor) -> bool:
    """A backward pass that must send the gradients of its loss, or nothing. Says whether it sent any."""
    own = own_gradients(loop, loss)
    membership = loop.session._membership
    spy = Spy(membership.worker) if membership.worker is not None else None
    if spy is not None:
        membership.worker = spy  # type: ignore[assignment]
    loss.backward()
    if spy is None:
        return False
    membership.worker = spy._worker
    sent = [(at, given) for at, given in spy.sent if at in own]
    for at, given in sent:
        assert_close([given], [own[at]], 1e-4)
    return bool(sent)


@pytest.mark.parametrize("stream", [False, True], ids=["loader", "stream"])
def test_gradients_of_rounds_that_were_replayed_are_not_sent_again(serve: Any, stream: bool) -> None:
    def slow(loop: Loop) -> int:
        sent = 0
        (optimizer,) = loop.optimizers
        for step, (x, y) in enumerate(loop.batches(stream)):
            if step == STEPS:
                break
            sent += send_and_compare(loop, loop.loss(x, y))
            optimizer.step()
            loop.note()
            # At the end of the body: what is replayed before the next batch comes after it.
            optimizer.zero_grad()
            loop.fall_behind()
        return sent

    assert run(serve(2, policy="static:1").address, slow, stream=stream) > 0


@pytest.mark.parametrize("way", ["eval", "forward"])
@pytest.mark.parametrize("mode", ["mean", "server"])
def test_a_backward_pass_keeps_the_parameters_that_it_began_with(
    serve: Any, way: str, mode: str
) -> None:
    def model() -> nn.Module:
        made = mlp()
        return made.eval() if way == "eval" else made

    def slow(loop: Loop) -> int:
        sent = 0
        (optimizer,) = loop.optimizers
        for step, (x, y) in enumerate(loop.batches(stream=True)):
            if step == STEPS:
                break
            optimizer.zero_grad()
            out = loop.model(x) if way == "eval" else loop.model.forward(x)
            versions: list[int] = []
            loss = nn.functional.mse_loss(out, y)
            first = loop.session._replica.flat.params[-1].tensor
            out.register_hook(lambda _: versions.append(first._version))
            handle = first.register_hook(lambda _: versions.append(first._version))
            sent += send_and_compare(loop, loss)
            handle.remove()
            assert len(set(versions)) == 1, "the parameters changed inside the pass"
            optimizer.step()
            loop.note()
            loop.fall_behind()
        return sent

    server = serve(2, policy="static:1")
    run(server.address, slow, stream=True, model=model, mode=mode)


def one(model: nn.Module) -> list[torch.optim.Optimizer]:
    return [torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)]


def two(model: nn.Module) -> list[torch.optim.Optimizer]:
    first, _, second = model.children()
    return [
        torch.optim.SGD(first.parameters(), lr=0.05, momentum=0.9, weight_decay=0.1),
        torch.optim.AdamW(second.parameters(), lr=0.01),
    ]


def clip(model: nn.Module) -> None:
    """Changes gradients by more than a common factor: a worker that misses the step takes the state."""
    nn.utils.clip_grad_value_(model.parameters(), 0.01)


@pytest.mark.parametrize("closure", [False, True], ids=["plain", "closure"])
@pytest.mark.parametrize("make", [one, two])
def test_a_step_that_the_state_has_already_changes_nothing(
    serve: Any, make: Any, closure: bool
) -> None:
    def slow(loop: Loop) -> int:
        taken = 0
        for x, y in loop.behind(rounds=2):

            def contribute() -> Tensor:
                loss = loop.loss(x, y)
                loss.backward()
                clip(loop.model)
                assert all(p.grad.norm().isfinite() for p in loop.model.parameters())
                return loss

            first, *others = loop.optimizers
            if not closure:
                contribute()
            before = values(loop.model)
            first.step(contribute) if closure else first.step()  # type: ignore[arg-type]
            for optimizer in others:
                optimizer.step()
            assert all(p.grad is not None for p in loop.model.parameters())
            if not closure:
                taken += all(torch.equal(a, b) for a, b in zip(before, values(loop.model)))
        return taken

    server = serve(2, policy="static:1")
    taken = run(server.address, slow, make=make, change=clip)
    assert taken == STEPS or closure


def test_a_step_that_the_state_has_already_leaves_the_loss_scale_alone(serve: Any) -> None:
    def slow(loop: Loop) -> None:
        (optimizer,) = loop.optimizers
        for step, (x, y) in enumerate(loop.batches(stream=False)):
            if step == STEPS:
                break
            optimizer.zero_grad()
            loss = loop.loss(x, y)
            loop.fall_behind(rounds=2)
            loop.scaler.scale(loss).backward()
            loop.scaler.unscale_(optimizer)
            clip(loop.model)
            assert all(p.grad.isfinite().all() for p in loop.model.parameters())
            loop.scaler.step(optimizer)
            loop.scaler.update()
            loop.note()
            assert loop.scaler.get_scale() >= 64.0

    run(serve(2, policy="static:1").address, slow, make=one, change=clip, scaled=True)


def test_a_record_that_is_too_long_to_send_makes_a_worker_take_the_state(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.replication._MAX_RECORD", 10)

    def slow(loop: Loop) -> None:
        (optimizer,) = loop.optimizers
        for x, y in loop.behind(rounds=2):
            loop.loss(x, y).backward()
            optimizer.step()

    run(serve(2, policy="static:1").address, slow)


class Convolutions(nn.Module):
    """Convolutions, whose parameters may have the layout ``channels_last``."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 4, 2), nn.Conv2d(4, 1, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, :, None, None].expand(-1, -1, 3, 3).reshape(-1, 2, 9, 3)
        return self.second(self.first(x)).mean((1, 2, 3))[:, None]


def channels_last() -> nn.Module:
    return seeded(Convolutions()).to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def fused(model: nn.Module) -> list[torch.optim.Optimizer]:
    return [torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)]


@pytest.mark.parametrize("change", [lambda _: None, clip], ids=["replay", "state"])
def test_a_fused_optimizer_follows_the_run_in_the_layout_channels_last(
    serve: Any, change: Any
) -> None:
    def slow(loop: Loop) -> None:
        (optimizer,) = loop.optimizers
        for x, y in loop.behind(rounds=2):
            loop.loss(x, y).backward()
            change(loop.model)
            optimizer.step()
            for param, state in optimizer.state.items():
                assert param.grad.stride() == param.stride() == state["exp_avg"].stride()

    server = serve(2, policy="static:1")
    run(server.address, slow, model=channels_last, make=fused, change=change)


def test_a_step_that_is_skipped_is_skipped_by_a_worker_that_missed_it(serve: Any) -> None:
    """Every second round is skipped, by the mean that all workers see or by its number."""

    def step(loop: Loop, optimizer: torch.optim.Optimizer) -> None:
        if loop.session.round % 2:
            loop.session.skip_step()
        else:
            optimizer.step()

    def slow(loop: Loop) -> int:
        (optimizer,) = loop.optimizers
        missed = 0
        for x, y in loop.behind(rounds=3):
            loop.loss(x, y).backward()
            before = values(loop.model)
            step(loop, optimizer)
            if loop.session.round % 2:
                assert all(map(torch.equal, before, values(loop.model)))
            assert loop.session.last is not None
            missed += loop.session.last.missed
        return missed

    server = serve(2, policy="static:1")
    assert run(server.address, slow, step=step) > 0


def test_a_replay_that_makes_other_values_than_its_record_is_followed_by_the_runs_state(
    serve: Any,
) -> None:
    """The parameters of the slow worker are changed between two of its steps."""

    def slow(loop: Loop) -> list[bool]:
        (optimizer,) = loop.optimizers
        replays = loop.watch_replays()
        for at, (x, y) in enumerate(loop.behind(rounds=3)):
            if at == 2:
                with torch.no_grad():
                    for param in loop.model.parameters():
                        param += 1.0
            loop.loss(x, y).backward()
            optimizer.step()
        return replays

    replays = run(serve(2, policy="static:1").address, slow)
    # One replay finds the change, and the state that is then taken leaves nothing of it.
    assert replays.count(False) == 1, replays
    assert replays[-1]


def test_optimizers_that_take_turns_by_round_follow_the_run(serve: Any) -> None:
    """A worker that missed rounds finds the mean of a later one in ``.grad``."""

    def step(loop: Loop, optimizer: torch.optim.Optimizer) -> None:
        if optimizer is loop.optimizers[loop.session.round % 2]:
            optimizer.step()

    def slow(loop: Loop) -> int:
        other_turn = 0
        for at, (x, y) in enumerate(loop.batches(stream=False)):
            if at == STEPS:
                break
            for optimizer in loop.optimizers:
                optimizer.zero_grad()
            before = loop.session.round
            loop.fall_behind(rounds=1 + at % 3)
            loop.loss(x, y).backward()
            other_turn += (loop.session.round - before) % 2 == 0
            for optimizer in loop.optimizers:
                step(loop, optimizer)
            loop.note()
        return other_turn

    server = serve(2, policy="static:1")
    assert run(server.address, slow, make=two, step=step) > 0
