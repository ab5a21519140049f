"""Draws of Markov chains, with their statistics and final states."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, NamedTuple

from torch import Tensor
from torch.distributions import Distribution

from pyro_mbde._checks import argument_error, check_flag, counted
from pyro_mbde.mcmc.inference_data import Groups, by_chain, to_arviz
from pyro_mbde.mcmc.pointwise import observations, pointwise_log_likelihood

#: The one line that shows chains names at most this many of their sites.
_MAX_SHOWN = 8


class ChainState(NamedTuple):
    """The state from which chains that were advanced together are resumed, as plain data.

    Attributes:
        params: the last unconstrained parameters of each site.
        adaptation: what the kernel learned in warmup, such as ``step_size``.
        generators: states of torch's generators after the last step, the CPU's first.
        lp: log-density of ``params``, shape ``(num_chains,)``, which shows whether chains are resumed on the same
            target; ``None`` before the first step.
    """

    params: dict[str, Tensor]
    adaptation: dict[str, Any]
    generators: tuple[Tensor, ...]
    lp: Tensor | None = None

    def __repr__(self) -> str:
        """Names the sites, but shows no numbers."""
        return f"ChainState(params of {', '.join(self.params)})"


@dataclass(frozen=True, eq=False, repr=False)
class Chains:
    """Draws of several Markov chains, and how they were made.

    They are as sensitive as the table that the density was fitted to. Trajectories carry no privacy guarantee: hand out
    exact draws instead.

    Attributes:
        draws: for each site, shape ``(num_chains, num_samples, *event_shape)``, in the site's own (constrained) space.
        sample_stats: for each statistic, shape ``(num_chains, num_samples)``: ``lp`` (the log-density of the
            unconstrained parameters, up to a constant; for the independence kernel, that of the draw itself),
            ``acceptance_rate`` (the acceptance probability of each proposal; where a bound can reject proposals early,
            an estimate that equals it on average: 0, or at least the probability), and, depending on the kernel,
            ``step_size``; for HMC and NUTS ``smooth_acceptance_rate`` (what the rate would be if the energy that is
            followed were the exact one), ``energy`` (at the start of the trajectory), ``diverging`` (whether the
            energy that is followed went far off) and ``n_steps`` (leapfrog steps); for independence
            ``total_variation``, a bound on the distance of the draw's law from the target.
        seeds: seed of each chain; a single seed where all chains are advanced together.
        warmup_steps: steps made before the kept draws, in which the kernel adapted.
        kernel: name of the kernel.
        density: the distribution that was sampled, whose exact draws the chains can be tested against; ``None`` for a
            model.
        kernel_options: options that the kernel was given.
        states: the state in which each chain, or each group of chains advanced together, stopped; chains are resumed
            from these. As sensitive as the draws.
    """

    draws: dict[str, Tensor]
    sample_stats: dict[str, Tensor]
    seeds: tuple[int, ...]
    warmup_steps: int
    kernel: str
    density: Distribution | None = None
    kernel_options: dict[str, Any] = field(default_factory=dict)
    states: tuple[ChainState, ...] = ()

    def __repr__(self) -> str:
        """Shows the kernel, lengths and sites, but no draws."""
        sites = [f"{name}{list(of.shape[2:])}" if of.dim() > 2 else name for name, of in self.draws.items()]
        more = f" and {len(sites) - _MAX_SHOWN} more" if len(sites) > _MAX_SHOWN else ""
        shown = (", ".join(sites[:_MAX_SHOWN]) or "no sites") + more
        shape = tuple(next(iter(self.draws.values())).shape[:2]) if self.draws else ()
        length = f"{counted(shape[0], 'chain')} of {counted(shape[1], 'draw')}" if len(shape) == 2 else "no draws"
        return f"Chains({self.kernel}: {length}; {shown})"

    @property
    def num_chains(self) -> int:
        """Number of chains."""
        return next(iter(self.draws.values())).shape[0]

    @property
    def num_samples(self) -> int:
        """Number of draws of each chain."""
        return next(iter(self.draws.values())).shape[1]

    def get_samples(self, group_by_chain: bool = False) -> dict[str, Tensor]:
        """Returns the draws as ``pyro.infer.MCMC.get_samples`` does, for ``pyro.infer.Predictive``.

        Privacy:
            As sensitive as the draws themselves: neither the draws nor predictions from them are for release.

        Args:
            group_by_chain: whether to keep the dimension of chains.

        Returns:
            For each site, shape ``(num_chains * num_samples, *event_shape)``; with ``group_by_chain``, :attr:`draws`.

        Example:
            >>> import torch
            >>> Chains({"x": torch.randn(4, 100, 2)}, {}, (1, 2, 3, 4), 0, "nuts").get_samples()["x"].shape
            torch.Size([400, 2])
        """
        if check_flag("group_by_chain", group_by_chain):
            return dict(self.draws)
        return {name: value.flatten(0, 1) for name, value in self.draws.items()}

    def to_arviz(
        self,
        coords: Mapping[str, Sequence[Any]] | None = None,
        dims: Mapping[str, Sequence[str]] | None = None,
        *,
        model: Callable[..., Any] | None = None,
        model_args: tuple[Any, ...] = (),
        model_kwargs: Mapping[str, Any] | None = None,
        log_likelihood: bool | None = None,
        posterior_predictive: Mapping[str, Tensor] | None = None,
        prior: Mapping[str, Tensor] | None = None,
        predictions: Mapping[str, Tensor] | None = None,
        constant_data: Mapping[str, Any] | None = None,
        predictions_constant_data: Mapping[str, Any] | None = None,
        pred_dims: Mapping[str, Sequence[str]] | None = None,
    ) -> Any:
        """Returns the chains in ArviZ's format: ``InferenceData`` before ArviZ 1.0, a ``DataTree`` since.

        The arguments are those of ``arviz.from_pyro`` and, because chains do not carry it, the model.

        Privacy:
            As sensitive as the draws themselves: not for release.

        Args:
            coords: labels along each dimension, by its name, such as ``{"column": ["age", "income"]}``.
            dims: names of each site's event dimensions, by site, such as ``{"x": ["column"]}``. A dimension of size 1,
                such as a plate at dim -2 leaves at dim -1, may be left out; it is then dropped.
            model: the model that the chains ran on, for ``observed_data`` and ``log_likelihood``.
            model_args: those of :func:`~pyro_mbde.run_mcmc`.
            model_kwargs: those of :func:`~pyro_mbde.run_mcmc`.
            log_likelihood: whether to add that group: the log-density of every observation at every draw; ``None`` adds
                it if there is a model.
            posterior_predictive: draws of observations, by site, one for each of :meth:`get_samples`, as ``Predictive``
                returns them.
            prior: draws of the model without observations, by site; sites that the chains have go into the group
                ``prior``, others into ``prior_predictive``.
            predictions: draws of what was not observed, in the form of ``posterior_predictive``.
            constant_data: inputs, by name.
            predictions_constant_data: inputs of the predictions, by name.
            pred_dims: names of dimensions in ``predictions`` and their inputs.

        Returns:
            Groups ``posterior`` (the draws), ``sample_stats`` where there are any, and those asked for. The posterior's
            attributes say how the chains were made.

        Raises:
            ValueError: labels do not fit the draws, ArviZ cannot hold a site of this name, log-likelihoods are asked
                for without a model, or the model has latent sites that the chains do not have.

        Example:
            >>> import torch
            >>> chains = Chains({"x": torch.randn(4, 100, 2)}, {}, (1, 2, 3, 4), 0, "nuts")
            >>> data = chains.to_arviz({"column": ["age", "income"]}, {"x": ["column"]})
            >>> data["posterior"]["x"].sel(column="age").shape
            (4, 100)
        """
        groups: Groups = {"posterior": self.draws, "sample_stats": self.sample_stats}
        if model is not None:
            groups["observed_data"] = observations(model, model_args, model_kwargs or {})
        elif log_likelihood:
            remedy = "Chains do not carry their model. Pass model, model_args and model_kwargs as to run_mcmc."
            raise ValueError(argument_error("model", "be given for log-likelihoods", model, remedy))
        if model is not None and log_likelihood is not False:
            scores = pointwise_log_likelihood(model, model_args, model_kwargs or {}, self.get_samples())
            shape = self.num_chains, self.num_samples
            groups["log_likelihood"] = {name: value.reshape(*shape, *value.shape[1:]) for name, value in scores.items()}
        groups |= self._predicted(groups.get("observed_data", {}), posterior_predictive, predictions, prior)
        groups |= {"constant_data": constant_data or {}, "predictions_constant_data": predictions_constant_data or {}}
        attrs = {
            "inference_library": "pyro_mbde",
            "inference_library_version": version("pyro_mbde"),
            "sampler": self.kernel,
            "warmup_steps": self.warmup_steps,
            "seeds": list(self.seeds),
        }
        return to_arviz(groups, coords, dims, pred_dims, attrs)

    def _predicted(self, observed: Mapping[str, Any], posterior: Any, predictions: Any, prior: Any) -> Groups:
        """The groups of predictions."""
        known = {name: value.shape[2:] for name, value in self.draws.items()}
        seen = known | {name: value.shape for name, value in observed.items()}
        shape = self.num_chains, self.num_samples
        groups = by_chain("posterior_predictive", posterior, shape, seen)
        groups |= by_chain("predictions", predictions, shape, known)
        for name, values in by_chain("prior", prior, None, seen).items():
            groups[name] = {site: value for site, value in values.items() if site in known}
            groups["prior_predictive"] = {site: value for site, value in values.items() if site not in known}
        return groups
