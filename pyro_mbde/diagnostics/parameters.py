"""Draws of chains, coordinate by coordinate."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from pyro_mbde._checks import argument_error
from pyro_mbde.mcmc.chains import Chains
from pyro_mbde.tables.earlier import SpreadSchema
from pyro_mbde.tables.schema import Schema

Array = NDArray[np.float64]


def scalar_parameters(chains: Chains, sites: Iterable[str] | None = None) -> dict[str, Array]:
    """Returns the draws coordinate by coordinate, each of shape ``(num_chains, num_samples)``, as ``x[0,1]``.

    Args:
        chains: the chains.
        sites: names of the sites; all by default.

    Raises:
        TypeError: ``chains`` is not :class:`~pyro_mbde.Chains`, or ``sites`` not a list of names.
        ValueError: there are no draws, or no site of that name.
    """
    if not isinstance(chains, Chains):
        raise TypeError(argument_error("chains", "be Chains, as run_mcmc returns them", type(chains).__name__))
    if isinstance(sites, str):
        raise TypeError(argument_error("sites", "be a list of names", sites, f"Write [{sites!r}]."))
    shapes = {name: tuple(value.shape) for name, value in chains.draws.items()}
    if not shapes or any(0 in shape or len(shape) < 2 for shape in shapes.values()):
        raise ValueError(argument_error("chains.draws", "hold a draw of each site at least", shapes))
    if len({shape[:2] for shape in shapes.values()}) > 1:
        raise ValueError(argument_error("chains.draws", "be of as many chains and draws for each site", shapes))
    for name, value in chains.draws.items():
        if value.is_complex():
            raise TypeError(argument_error(f"chains.draws[{name!r}]", "be real numbers", value.dtype))
    for name, value in chains.sample_stats.items():
        if value.shape != next(iter(shapes.values()))[:2]:
            what = f"chains.sample_stats[{name!r}]"
            raise ValueError(argument_error(what, "be of as many chains and draws", tuple(value.shape)))
    parameters: dict[str, Array] = {}
    for site in shapes if sites is None else sites:
        if site not in shapes:
            raise ValueError(argument_error("sites", f"be among {', '.join(shapes)}", site))
        parameters |= coordinates(site, chains.draws[site], 2)
    return parameters


def modelled_names(schema: Schema) -> list[str]:
    """Returns what a table's columns are called in the units that they are modelled in, which chains are in.

    Levels and dates are in codes. In models of earlier versions a whole number n is spread over [n, n + 1), so that
    means lie half a unit above those of the table.

    Example:
        >>> from pyro_mbde import Column
        >>> smoker, visits = Column("smoker", 0, 1, "integer"), Column("visits", 0, 61, "integer", "log1p")
        >>> modelled_names(Schema((Column("age", 18, 100), smoker, visits)))
        ['age', 'smoker', 'visits']
    """
    names, is_spread = [], isinstance(schema, SpreadSchema)
    for column in schema.columns:
        if column.kind != "real" and not is_spread:
            names.append(column.name)
            continue
        spread = f"{column.name} + [0, 1)" if column.kind == "integer" else column.name
        names.append(f"ln(1 + {spread})" if column.scale == "log1p" else spread)
    return names


def column_names(chains: Chains, names: Sequence[str] | Schema) -> dict[str, str]:
    """Returns what the coordinates of the chains' only site are to be called, by what they are called: ``x[0]``.

    Raises:
        TypeError: ``names`` is neither a sequence of strings nor a schema.
        ValueError: there is more than one site, or not a name for each of its coordinates.
    """
    if isinstance(names, Schema):
        names = modelled_names(names)
    if isinstance(names, str) or not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise TypeError(argument_error("names", "be a list of strings", names))
    shapes = [tuple(value.shape[2:]) for value in chains.draws.values()]
    if shapes != [(len(names),)] or len(set(names)) != len(names):
        constraint = f"name each coordinate of one site, of event shapes {shapes}"
        raise ValueError(argument_error("names", constraint, list(names)))
    shown = (name if name.isprintable() else repr(name) for name in names)
    return dict(zip(scalar_parameters(chains), shown, strict=True))


def coordinates(site: str, draws: Tensor, num_leading: int) -> dict[str, Array]:
    """The draws of a site, coordinate by coordinate, with their leading dimensions."""
    values = draws.detach().cpu().double().numpy()
    indices = np.ndindex(values.shape[num_leading:])
    site = site if site.isprintable() else repr(site)
    return {f"{site}[{','.join(map(str, i))}]" if i else site: values[(..., *i)] for i in indices}
