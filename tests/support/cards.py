"""Densities with unheard-of private numbers, for cards and reports; and what a page loads."""

from __future__ import annotations

from html.parser import HTMLParser

import torch
from densities import normal

from pyro_mbde import BoundedClassifiers, Bounds, LogNormalizer, MollifiedExpFamily
from pyro_mbde.density.bounds import Certificate


def hostile(index: int) -> MollifiedExpFamily:
    """A density with unheard-of private numbers."""
    generator = torch.Generator().manual_seed(index)
    network = BoundedClassifiers(2, 2, hidden_sizes=(5,))
    with torch.no_grad():
        for weight in network.weights:
            weight.mul_(torch.randn((), generator=generator) * 10 ** (index % 7))
    theta = 0.1 + torch.rand(2, generator=generator, dtype=torch.float64) / 7
    offset, shrinkage, phi = (torch.rand(3, generator=generator, dtype=torch.float64) / 9).tolist()
    return MollifiedExpFamily(
        normal(2),
        network,
        theta,
        LogNormalizer(phi, phi / 31),
        offset=offset,
        shrinkage=0.5 + shrinkage,
        bounds=Bounds(-0.25, 0.5),
        certificate=Certificate(0.001, 1e-9) if index % 2 else None,
    )


def pair() -> list[MollifiedExpFamily]:
    """Two tables' densities with nothing private in common."""
    networks = [BoundedClassifiers(1, 2), BoundedClassifiers(1, 2)]
    return [
        MollifiedExpFamily(
            normal(2),
            network,
            torch.tensor([theta], dtype=torch.float64),
            phi,
            offset=offset,
            shrinkage=shrinkage,
            bounds=Bounds(-0.3, 0.7),
            certificate=Certificate(0.01, 1e-9),
        )
        for network, theta, phi, offset, shrinkage in zip(
            networks, (0.2, 0.9), (0.0, 0.3), (0.0, 0.1), (1.0, 0.4), strict=True
        )
    ]


class Links(HTMLParser):
    """Collects everything that a page would load, and whether its tags are balanced."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loaded += [str(value) for name, value in attrs if name in ("src", "href", "action", "data", "srcset")]
        assert tag not in ("script", "link", "iframe", "img", "object")
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
