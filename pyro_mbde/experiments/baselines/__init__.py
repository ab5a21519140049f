"""Baselines for the figures: other estimators, with their guarantees, or none.

A new one is a file here, with a :class:`~pyro_mbde.experiments.baselines.common.Trainer` that returns a
:class:`~pyro_mbde.experiments.baselines.common.FittedDensity`, and an entry in
:data:`pyro_mbde.experiments.systems.SYSTEMS`, which says how it is run and how it looks in figures.
"""
