"""A user's mistakes get errors that name what is wrong."""

from __future__ import annotations

import socket
import time
from typing import Any

import paceline
import pytest
import torch
from torch import nn
from workers import Server, data, mlp, together


def session_of(server: Server, model: nn.Module, optimizer: Any, **settings: Any) -> paceline.Session:
    return paceline.init(
        model, optimizer, **{"server": server.address, "policy": "full", "epochs": 1, **settings}
    )


def joined(server: Server) -> paceline.Session:
    """A session whose offer defines the run."""
    model = mlp()
    session = session_of(server, model, torch.optim.SGD(model.parameters(), lr=0.1))
    session.loader(data(), batch_size=4)
    return session


def refusal(server: Server, model: nn.Module) -> str:
    """The error of a second worker, with this model."""
    session = session_of(server, model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(RuntimeError) as error:
        session.loader(data(), batch_size=4)
    return str(error.value)


def test_a_parameter_of_another_shape_is_named(serve: Any) -> None:
    server = serve(2)
    with joined(server):
        other = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 1))
        said = refusal(server, other)
    assert "`2.weight` has shape [1, 9] here and [1, 8] in the run" in said


def test_a_parameter_of_another_name_is_named(serve: Any) -> None:
    server = serve(2)
    with joined(server):
        other = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Tanh(), nn.Linear(8, 1))
        said = refusal(server, other)
    assert "`3.bias` here and `2.bias` in the run" in said


def test_another_seed_is_named(serve: Any) -> None:
    server, model = serve(2), mlp()
    with joined(server):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        other = session_of(server, model, optimizer, seed=5)
        with pytest.raises(RuntimeError, match="the seed is 5 here and 0 in the run"):
            other.loader(data(), batch_size=4)


def test_an_address_without_a_server_is_named() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = paceline.init(model, optimizer, server=address)
    with pytest.raises(RuntimeError, match=address):
        session.loader(data(), batch_size=4)


def test_a_forgotten_step_is_told(serve: Any) -> None:
    model = mlp()
    session = session_of(serve(1), model, torch.optim.SGD(model.parameters(), lr=0.1))
    with session, pytest.raises(paceline.PacelineError, match=r"without optimizer\.step\(\)"):
        for _, x, y in session.loader(data(), batch_size=4):
            nn.functional.mse_loss(model(x), y).backward()


def test_a_second_backward_outside_micro_batches_and_no_sync_is_refused(serve: Any) -> None:
    model = mlp()
    session = session_of(serve(1), model, torch.optim.SGD(model.parameters(), lr=0.1))
    with session:
        _, x, y = next(iter(session.loader(data(), batch_size=4)))
        nn.functional.mse_loss(model(x), y).backward()
        with pytest.raises(paceline.PacelineError, match=r"no_sync\(\) or session\.micro_batches"):
            nn.functional.mse_loss(model(x), y).backward()


def test_a_batch_without_backward_is_told(serve: Any) -> None:
    model = mlp()
    session = session_of(serve(1), model, torch.optim.SGD(model.parameters(), lr=0.1))
    with session, pytest.raises(paceline.PacelineError, match="the last batch was not used"):
        for _ in session.loader(data(), batch_size=4):
            pass


def test_a_dtype_that_does_not_travel_is_refused_with_its_parameter() -> None:
    model = mlp().double()
    with pytest.raises(paceline.PacelineError, match=r"`0\.weight` is torch\.float64"):
        paceline.init(model, torch.optim.SGD(model.parameters(), lr=0.1))


def test_a_model_that_is_still_wrapped_for_ddp_is_refused() -> None:
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(mlp())
        optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
        with pytest.raises(paceline.PacelineError, match="wrapped in DistributedDataParallel"):
            paceline.init(wrapped, optimizer)
    finally:
        torch.distributed.destroy_process_group()


def test_a_model_that_is_wrapped_for_ddp_after_init_is_refused(serve: Any) -> None:
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model = mlp()
        session = session_of(serve(1), model, torch.optim.SGD(model.parameters(), lr=0.1))
        loader = session.loader(data(), batch_size=4)
        wrapped = nn.parallel.DistributedDataParallel(model)
        with pytest.raises(paceline.PacelineError, match="wrapped in DistributedDataParallel"):
            for _, x, _ in loader:
                wrapped(x)
        session.close()
    finally:
        torch.distributed.destroy_process_group()


def test_another_optimizer_is_named(serve: Any) -> None:
    server, model = serve(2), mlp()
    with joined(server):
        other = session_of(server, model, torch.optim.Adam(model.parameters()))
        with pytest.raises(RuntimeError, match="the optimizer is Adam here and SGD in the run$"):
            other.loader(data(), batch_size=4)


@pytest.mark.parametrize("mode", ["mean", "server"])
def test_a_parameter_that_is_unfrozen_later_is_named(serve: Any, mode: str) -> None:
    model = mlp()
    model[0].weight.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with session_of(serve(1), model, optimizer, mode=mode) as session:
        loader = session.loader(data(), batch_size=4)
        with pytest.raises(paceline.PacelineError, match=r"`0\.weight` was frozen at paceline\.init"):
            for at, (_, x, y) in enumerate(loader):
                optimizer.zero_grad()
                nn.functional.mse_loss(model(x), y).backward()
                optimizer.step()
                assert at < 2
                model[0].weight.requires_grad_(at == 1)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda p: torch.optim.RMSprop(p, lr=0.1), "RMSprop"),
        (lambda p: torch.optim.Adam(p, amsgrad=True), "amsgrad=True"),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.5), "dampening=0.5"),
    ],
)
def test_mode_server_refuses_other_optimizers_and_options_by_name(
    serve: Any, make: Any, named: str
) -> None:
    model = mlp()
    with pytest.raises(paceline.PacelineError, match=named):
        session = session_of(serve(1), model, make(model.parameters()), mode="server")
        session.loader(data(), batch_size=4)


def test_initial_values_that_differ_are_named_and_are_those_of_the_run(
    serve: Any, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve(2, policy="full")

    def worker(number: int) -> Any:
        model = mlp()
        if number == 1:
            nn.init.ones_(model[0].weight)
        session = session_of(server, model, torch.optim.SGD(model.parameters(), lr=0.0))
        for _, x, y in session.loader(data(), batch_size=4):
            nn.functional.mse_loss(model(x), y).backward()
            session._replica.optimizers[0].step()
        session.close()
        return model[0].weight.detach()

    first, second = together(2, worker)
    assert torch.equal(first, second)
    (told,) = [text for text in caplog.messages if "starts with other values" in text]
    assert "in `0.weight`: it takes the run's" in told


def test_a_second_backward_for_one_micro_batch_is_refused(serve: Any) -> None:
    model = mlp()
    session = session_of(serve(1), model, torch.optim.SGD(model.parameters(), lr=0.1))
    with session:
        _, x, y = next(iter(session.loader(data(), batch_size=4)))
        with pytest.raises(paceline.PacelineError, match="called twice for one micro-batch"):
            for part_x, part_y in session.micro_batches((x, y), 2):
                nn.functional.mse_loss(model(part_x), part_y).backward()
                nn.functional.mse_loss(model(part_x), part_y).backward()


def test_a_batch_whose_members_differ_in_length_is_not_split(serve: Any) -> None:
    model = mlp()
    session = session_of(serve(1), model, torch.optim.SGD(model.parameters(), lr=0.1))
    with session:
        _, x, _ = next(iter(session.loader(data(), batch_size=4)))
        images = [torch.zeros(3, 8, 8), torch.zeros(3, 6, 9)]
        with pytest.raises(paceline.PacelineError, match="members of 4 and 3 samples"):
            next(session.micro_batches((x, images), 2))


def test_a_step_may_be_skipped_on_purpose(serve: Any) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with session_of(serve(1), model, optimizer) as session:
        for at, (_, x, y) in enumerate(session.loader(data(), batch_size=4)):
            before = model[0].weight.clone()
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            session.skip_step() if at % 2 else optimizer.step()
            assert torch.equal(before, model[0].weight) == bool(at % 2)


def test_a_forgotten_step_is_told_after_a_skipped_one(serve: Any) -> None:
    model = mlp()
    session = session_of(serve(1), model, torch.optim.SGD(model.parameters(), lr=0.1))
    with session, pytest.raises(paceline.PacelineError, match=r"or session\.skip_step\(\)"):
        for at, (_, x, y) in enumerate(session.loader(data(), batch_size=4)):
            nn.functional.mse_loss(model(x), y).backward()
            if at == 0:
                session.skip_step()
            assert at < 2


def test_a_skipped_step_after_a_step_and_in_mode_server_is_refused(serve: Any) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with session_of(serve(1), model, optimizer) as session:
        _, x, y = next(iter(session.loader(data(), batch_size=4)))
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        with pytest.raises(paceline.PacelineError, match=r"after optimizer\.step"):
            session.skip_step()
    with session_of(serve(1), model, optimizer, mode="server") as session:
        with pytest.raises(paceline.PacelineError, match='needs mode="mean"'):
            session.skip_step()


def test_micro_batches_of_a_stream_without_a_batch_size_are_refused(serve: Any) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = paceline.init(model, optimizer, server=serve(1).address)
    _, x, y = data().tensors
    with session, pytest.raises(paceline.PacelineError, match=r"paceline\.init\(batch_size=\)"):
        next(session.micro_batches((x, y), 4))


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"clip": "norm:1"}, "the setting clip is not supported .* call torch.nn.utils.clip_grad_norm_"),
        ({"pull": "auto"}, "the setting pull is not supported"),
        ({"straggler": "finish", "late": "fold"}, "the setting straggler finish is not supported"),
        ({"policy": "async"}, "the setting policy async is not supported"),
    ],
)
def test_mode_mean_refuses_settings_that_would_change_the_mean(
    serve: Any, settings: dict[str, str], named: str
) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = paceline.init(model, optimizer, server=serve(1).address, epochs=1, **settings)
    with session, pytest.raises(paceline.PacelineError, match=named):
        session.loader(data(), batch_size=4)


@pytest.mark.parametrize("way", ["micro_batches", "no_sync"])
def test_a_step_before_the_last_backward_is_refused(serve: Any, way: str) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model[0].weight.clone()
    with session_of(serve(1), model, optimizer) as session:
        _, x, y = next(iter(session.loader(data(), batch_size=4)))
        if way == "no_sync":
            with session.no_sync():
                nn.functional.mse_loss(model(x), y).backward()
        else:
            parts = session.micro_batches((x, y), 2)
            x, y = next(parts)
            nn.functional.mse_loss(model(x), y).backward()
        with pytest.raises(paceline.PacelineError, match=r"step\(\) came before the last backward"):
            optimizer.step()
    assert torch.equal(before, model[0].weight)


@pytest.mark.parametrize("stream", [False, True], ids=["loader", "stream"])
@pytest.mark.parametrize("again", ["micro_batches", "backward"])
def test_micro_batches_that_are_left_early_are_told(serve: Any, stream: bool, again: str) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = session_of(serve(1), model, optimizer, **{"epochs": None, "batch_size": 4} if stream else {})
    _, *batch = data().tensors
    loader = [[each[:4] for each in batch]] * 2 if stream else session.loader(data(), batch_size=4)
    with session, pytest.raises(paceline.PacelineError, match="was left early"):
        for at, (*_, x, y) in enumerate(loader):
            if at == 1 and again == "backward":
                nn.functional.mse_loss(model(x), y).backward()
            for px, py in session.micro_batches((x, y), 2):
                nn.functional.mse_loss(model(px), py).backward()
                break


def test_several_scalers_are_refused() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scalers: Any = [torch.amp.GradScaler("cpu"), torch.amp.GradScaler("cpu")]
    with pytest.raises(TypeError, match="one GradScaler, not list"):
        paceline.init(model, optimizer, scaler=scalers)


@pytest.mark.parametrize(
    ("rule", "named"),
    [("cubic", "one of linear, sqrt, adascale, not 'cubic'"), ("adascale", 'needs mode="server"')],
)
def test_a_rule_for_the_learning_rate_is_checked_at_once(rule: str, named: str) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=named):
        paceline.init(model, optimizer, lr_scaling=rule)


def test_a_session_that_is_closed_says_so(serve: Any) -> None:
    session = joined(serve(1))
    session.close()
    with pytest.raises(paceline.PacelineError, match="the session is closed: call paceline.init again"):
        session.connect(None, 4)


def test_a_second_close_leaves_the_optimizer_to_its_next_session(serve: Any) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first = session_of(serve(1), model, optimizer, mode="server")
    first.close()
    with session_of(serve(1), model, optimizer, mode="server"):
        step = optimizer.step
        first.close()
        assert optimizer.step is step
    assert "step" not in vars(optimizer)


@pytest.mark.parametrize(
    ("here", "there", "words"),
    [
        ({"lr_scaling": "sqrt"}, {"lr_scaling": "linear"}, 'with lr_scaling="sqrt" here and SGD with lr_scaling="linear"'),
        ({"scaler": torch.amp.GradScaler("cpu")}, {}, "SGD with a GradScaler here and SGD in the run"),
        ({"shuffle": False}, {}, "SGD with samples in order here and SGD in the run"),
    ],
    ids=["lr_scaling", "scaler", "shuffle"],
)  # fmt: skip
def test_what_changes_a_step_is_alike_on_all_workers(
    serve: Any, here: dict[str, Any], there: dict[str, Any], words: str
) -> None:
    server = serve(2)

    def join(settings: dict[str, Any]) -> paceline.Session:
        model = mlp()
        order = {key: value for key, value in settings.items() if key == "shuffle"}
        others = {key: value for key, value in settings.items() if key != "shuffle"}
        session = session_of(server, model, torch.optim.SGD(model.parameters(), lr=0.1), **others)
        session.loader(data(), batch_size=4, **order)
        return session

    with join(there), pytest.raises(paceline.PacelineError) as error:
        join(here)
    assert words in str(error.value)


def test_parameters_that_no_optimizer_of_the_session_steps_are_named(
    serve: Any, caplog: pytest.LogCaptureFixture
) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    session_of(serve(1), model, optimizer).close()
    assert "`2.weight`, `2.bias` belong to no optimizer of the session" in caplog.text


def test_parameters_that_are_added_to_the_optimizer_later_are_refused(serve: Any) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    with session_of(serve(1), model, optimizer) as session:
        optimizer.add_param_group({"params": model[2].parameters()})
        _, x, y = next(iter(session.loader(data(), batch_size=4)))
        nn.functional.mse_loss(model(x), y).backward()
        with pytest.raises(paceline.PacelineError, match="has 4 parameters now, and had 2 at paceline.init"):
            optimizer.step()


def test_a_session_that_is_closed_at_once_leaves_at_once(
    serve: Any, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        session = joined(serve(1))
        began = time.monotonic()
        session.close()
        assert time.monotonic() - began < 4.0
    assert "was lost" not in caplog.text


@pytest.mark.parametrize(
    ("name", "value"), [("batch_size", 0), ("seed", -1), ("hash_every", -1), ("accumulate", 0)]
)
def test_a_number_out_of_range_is_named(name: str, value: int) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=f"{name} must be at least"):
        paceline.init(model, optimizer, **{name: value})


def test_a_stream_with_a_length_is_refused_by_the_loader(serve: Any) -> None:
    class Stream(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return 8

        def __iter__(self) -> Any:
            return iter(range(8))

    model = mlp()
    with session_of(serve(1), model, torch.optim.SGD(model.parameters(), lr=0.1)) as session:
        with pytest.raises(paceline.PacelineError, match="the dataset is a stream"):
            session.loader(Stream(), batch_size=4)
