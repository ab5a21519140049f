"""One optimisation: alone or in several processes, on any device, kept and taken up again."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, NoReturn, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import softplus

from pyro_mbde._checks import argument_error
from pyro_mbde._torch_state import generator_states, seed_generators, set_generator_states
from pyro_mbde.density.statistics import BoundedClassifiers
from pyro_mbde.ranks import ALONE, LostRankError, Ranks
from pyro_mbde.training.ensemble_state import joined, part_of, part_of_networks, shares
from pyro_mbde.training.fallback import ReadingError
from pyro_mbde.training.interrupts import interrupts_put_off
from pyro_mbde.training.row_source import HeldRows, RowSource, check_rows
from pyro_mbde.training.windows import derived_seed

T = TypeVar("T")

Optimizer = torch.optim.Optimizer
Scheduler = torch.optim.lr_scheduler.LRScheduler


@dataclass(frozen=True)
class Course:
    """How an optimisation is carried out; what it finds depends on it only by noise.

    Attributes:
        device: of networks, batches and draws; ``None`` for that of the rows.
        ranks: the processes that work together.
        by_networks: whether each trains networks of its own, or all train all of them on rows of their own.
        keep: called with the state of all processes, in the first one; ``None`` to keep nothing.
        keep_steps: steps after which it is called.
        resumed: a state to go on from.
    """

    device: torch.device | None = None
    ranks: Ranks = ALONE
    by_networks: bool = False
    keep: Callable[[dict[str, Any]], None] | None = None
    keep_steps: int = 100
    resumed: dict[str, Any] | None = None


def check_device(device: str | torch.device) -> torch.device:
    """Returns a device that networks can be trained on.

    Raises:
        TypeError: it is neither text nor a device.
        ValueError: there is no such device here.
    """
    if not isinstance(device, str | torch.device):
        raise TypeError(argument_error("device", "be a device, such as 'cpu' or 'cuda'", device))
    try:
        found = torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:  # a build without CUDA asserts that it has it
        remedy = "This PyTorch sees no such device: leave device out, or install one that does."
        raise ValueError(argument_error("device", "be a device of this machine", str(device), remedy)) from error
    if found.type not in ("cpu", "cuda"):
        raise ValueError(argument_error("device", "be of type cpu or cuda", str(device)))
    return found


class Batches(NamedTuple):
    """What a step learns from. Private.

    Attributes:
        rows: of P, and below them draws of Q.
        num_positives: how many are of P.
    """

    rows: Tensor
    num_positives: int


class Optimisation:
    """Networks on their way from random weights to trained ones.

    What one of several processes cannot do, it tells the others with the next thing that all of them exchange, and all
    stop there: with the gradients of a step, or with the states of a checkpoint.

    Args:
        networks: the whole ensemble, untrained; the same in all processes, as is torch's generator.
        make_optimizer: called with the networks that this process trains.
        num_steps: gradient steps.
        batch_size: rows of P and of Q that each process takes in a step; ``None`` for all.
        course: how it is carried out.
    """

    def __init__(
        self,
        networks: BoundedClassifiers,
        make_optimizer: Callable[[BoundedClassifiers], tuple[Optimizer, Scheduler | None]],
        num_steps: int,
        batch_size: int | None,
        course: Course,
    ) -> None:
        ranks = course.ranks
        self._course, self._ranks, self._num_steps = course, ranks, num_steps
        self._shares = shares(networks.num_classifiers, ranks.size) if course.by_networks else None
        self._averages = ranks.size > 1 and not course.by_networks
        self._batch_size = batch_size
        self._device = networks.loc.device if course.device is None else course.device
        self._networks = networks if self._shares is None else part_of_networks(networks, self._shares[ranks.rank])
        self._make_optimizer = make_optimizer
        self._optimizer: Optimizer
        self._scheduler: Scheduler | None
        self._step = 0 if course.resumed is None else int(course.resumed["step"])  # the same in all processes
        #: Sum of the losses of the last tenth of the steps.
        self._late_loss = torch.zeros((), dtype=torch.float64)
        self._num_late = max(1, num_steps // 10)
        #: The batches of the next step, where they were made while processes exchanged gradients.
        self._ahead: Batches | None = None
        #: Why this process cannot go on, until all processes know.
        self._failure: Exception | None = None
        if ranks.size > 1:  # draws of its own for each
            seed_generators(derived_seed(int(torch.randint(2**62, ())), ranks.rank))

    def train(
        self, positives: RowSource, negatives: Tensor | Callable[[int], Tensor], on_step: Callable[[], object]
    ) -> tuple[BoundedClassifiers, float]:
        """Makes all steps that are left.

        Returns:
            The whole ensemble, and its loss averaged over the last tenth of the steps, the same in all processes.

        Raises:
            ValueError: there are no rows, or training diverged.
            RuntimeError: it failed in another process.
        """
        keeps = self._course.keep is not None
        self._attempt(lambda: self._begin(positives))
        with interrupts_put_off(keeps and self._ranks.size == 1) as interrupted:
            while self._step < self._num_steps:
                is_kept = False
                loss = self._attempt(lambda: self._gradient(positives, negatives))
                if self._averages:
                    loss = self._average(loss, positives, partial(self._prepare, positives, negatives))
                if loss is not None:
                    self._attempt(partial(self._update, loss))
                self._step += 1
                if keeps and self._step % self._course.keep_steps == 0 and self._step < self._num_steps:
                    self._keep(positives)
                    is_kept = True
                try:
                    self._attempt(on_step)
                except BaseException:
                    if keeps and not is_kept and self._ranks.size == 1:
                        self._keep(positives)
                    raise
                if interrupted() is not None:
                    if not is_kept:
                        self._keep(positives)
                    return self._networks, math.nan  # the signal is raised at the end of the block
            return self._finish(positives)

    def _attempt(self, work: Callable[[], T]) -> T | None:
        """Does a part of the work; once one has failed here, nothing, in step with the others until all can stop."""
        if self._failure is None:
            try:
                return work()
            except (ReadingError, LostRankError):
                raise
            except Exception as error:
                if self._ranks.size == 1:
                    raise
                self._failure = error
        return None

    def _begin(self, positives: RowSource) -> None:
        resumed = self._course.resumed
        if resumed is not None:  # before a row is read
            positives.go_to(resumed["positions"])
        check_rows(positives.held)
        self._networks.to(self._device)
        self._late_loss = self._late_loss.to(self._device)
        self._optimizer, self._scheduler = self._make_optimizer(self._networks)
        if resumed is not None:
            try:
                self._resume(resumed)
            except (KeyError, TypeError, ValueError, RuntimeError) as error:  # it is about the file, not about rows
                remedy = "Start again (--force in place of --resume), or use the version of PyTorch that wrote it."
                cause = ValueError(f"The checkpoint cannot be taken up here: {error}. {remedy}")
                raise ReadingError(str(cause)) from cause

    def _batches(self, positives: RowSource, negatives: Tensor | Callable[[int], Tensor]) -> Batches:
        batch_p = positives.batch(self._batch_size)
        if isinstance(negatives, Tensor):
            batch_q = HeldRows(negatives).batch(self._batch_size)
        else:
            batch_q = negatives(len(batch_p))
        return Batches(torch.cat([batch_p.to(self._device), batch_q.to(self._device)]), len(batch_p))

    def _prepare(self, positives: RowSource, negatives: Tensor | Callable[[int], Tensor]) -> None:
        """Makes the batches of the next step, unless this one is the last or its state is kept.

        What is kept are the generators and the place in the table before those batches.
        """
        step = self._step + 1
        is_kept = self._course.keep is not None and step % self._course.keep_steps == 0
        if step < self._num_steps and not is_kept:
            self._ahead = self._attempt(lambda: self._batches(positives, negatives))

    def _gradient(self, positives: RowSource, negatives: Tensor | Callable[[int], Tensor]) -> Tensor:
        rows, num_positives = self._ahead or self._batches(positives, negatives)
        self._ahead = None
        logits = self._networks.logits(rows)
        loss = softplus(-logits[:num_positives]).mean() + softplus(logits[num_positives:]).mean()
        self._optimizer.zero_grad(set_to_none=True)
        # Each network gets the gradient it would get by itself.
        torch.autograd.backward(loss * self._networks.num_classifiers)
        return loss.detach()

    def _average(self, loss: Tensor | None, positives: RowSource, meanwhile: Callable[[], object]) -> Tensor:
        """Averages gradients and loss over all processes, and raises in all of them if one failed.

        If one of them is about to read rows, all do: else each would wait for every other one's reading.

        Args:
            loss: of this step; None if it failed here.
            positives: rows of P.
            meanwhile: called while the processes exchange them.
        """
        parameters = list(self._networks.parameters())
        notes = torch.zeros(3, dtype=self._networks.loc.dtype)
        if loss is None:  # on the CPU, whatever became of a device
            gradients = [torch.zeros(parameter.shape, dtype=parameter.dtype) for parameter in parameters]
            notes[1] = 1.0
        else:
            gradients = [torch.zeros_like(one) if one.grad is None else one.grad for one in parameters]
            notes[0] = loss
            notes[2] = float(self._batch_size is not None and positives.is_short(self._batch_size))
        finish = self._ranks.start_average([*gradients, notes])
        meanwhile()
        finish()
        if float(notes[1]):
            _raise_alike(self._failure)
        if float(notes[2]):
            self._attempt(positives.read_ahead)
        return notes[0]

    def _update(self, loss: Tensor) -> None:
        self._optimizer.step()
        if self._scheduler is not None:
            self._scheduler.step()
        if self._step >= self._num_steps - self._num_late:
            self._late_loss += loss.to(self._device)

    def _finish(self, positives: RowSource) -> tuple[BoundedClassifiers, float]:
        state = self._whole_state(positives)
        # In the networks' own type, in which a sum that is too large is infinite.
        loss = float(torch.tensor(state["late_loss"], dtype=self._networks.loc.dtype)) / self._num_late
        if not math.isfinite(loss):
            remedy = "Lower learning_rate, or drop rows far off the base, by a public rule."
            raise ValueError(f"training must keep its loss finite. {remedy}")
        self._write(state)
        networks = self._attempt(lambda: self._whole_networks(state["networks"]))
        has_failed = any(self._ranks.gather(self._failure is not None))
        if networks is None or has_failed:
            _raise_alike(self._failure)
        return networks, loss

    def _whole_networks(self, whole: dict[str, Tensor]) -> BoundedClassifiers:
        networks = self._networks
        if self._ranks.size == 1:
            return networks
        config = {**networks.config(), "num_classifiers": len(whole["weights.0"])}
        return BoundedClassifiers.from_state(config, whole).to(self._device).train(networks.training)

    def _keep(self, positives: RowSource) -> None:
        self._write(self._whole_state(positives))

    def _write(self, state: dict[str, Any]) -> None:
        keep = self._course.keep
        if keep is not None and self._ranks.is_first:
            self._attempt(lambda: keep(state))

    def _whole_state(self, positives: RowSource) -> dict[str, Any]:
        """The state of all processes, in the layout of the whole ensemble."""
        own = self._attempt(lambda: self._own_state(positives))
        gathered = self._ranks.gather(own)
        states = [state for state in gathered if state is not None]
        if len(states) < len(gathered):
            _raise_alike(self._failure)
        whole = dict(states[0])
        if self._shares is not None:
            whole = joined(states)
            losses = [len(share) * state["late_loss"] for share, state in zip(self._shares, states, strict=True)]
            whole["late_loss"] = sum(losses) / self._shares[-1].stop
        del whole["position"]
        whole["positions"] = [state["position"] for state in states]
        whole["generators"] = [state["generators"] for state in states]
        whole["late_losses"] = [state["late_loss"] for state in states]
        return whole

    def _own_state(self, positives: RowSource) -> dict[str, Any]:
        own: dict[str, Any] = {
            "step": self._step,
            "late_loss": float(self._late_loss),
            "position": positives.position(),
            "generators": list(generator_states()),
        }
        if self._shares is not None or self._ranks.is_first:
            own["networks"] = _on_cpu(self._networks.state_dict())
            own["optimizer"] = _on_cpu(self._optimizer.state_dict())
            own["scheduler"] = {} if self._scheduler is None else dict(self._scheduler.state_dict())
        return own

    def _resume(self, state: dict[str, Any]) -> None:
        rank, size = self._ranks.rank, self._ranks.size
        own = state if self._shares is None else part_of(state, self._shares[rank])
        self._networks.load_state_dict(own["networks"])
        if self._scheduler is not None:
            self._scheduler.load_state_dict(own["scheduler"])
        self._optimizer.load_state_dict(own["optimizer"])
        is_same_size = len(state["generators"]) == size
        late_loss = state["late_losses"][rank] if is_same_size and self._shares is not None else state["late_loss"]
        self._late_loss.fill_(late_loss)
        generators: Sequence[Tensor] = state["generators"][rank if is_same_size else 0]
        num_states = len(generator_states())
        # Of more or fewer devices of CUDA: the CPU's state alone.
        set_generator_states(tuple(generators) if len(generators) == num_states else (generators[0],))
        if not is_same_size and size > 1:
            seed_generators(derived_seed(int(torch.randint(2**62, ())), rank))


def _on_cpu(state: Any) -> Any:
    if isinstance(state, Tensor):
        return state.detach().cpu().clone()
    if isinstance(state, dict):
        return {name: _on_cpu(value) for name, value in state.items()}
    return [_on_cpu(value) for value in state] if isinstance(state, list) else state


def _raise_alike(failure: Exception | None) -> NoReturn:
    if failure is not None:
        raise failure
    raise RuntimeError("another process could not train, so all of them stop")
