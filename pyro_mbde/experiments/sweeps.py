"""The jobs that each figure of the paper takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pyro_mbde.experiments.runner import Job
from pyro_mbde.experiments.systems import BASELINES

Option = tuple[str, float | int | str]

#: The paper's own, largest first.
RING_EPSILONS = (5.0, 2.0, 1.5, 1.0, 0.75, 0.5, 0.25, 0.1)
PLANE_EPSILONS = (10.0, *RING_EPSILONS)
LINE_EPSILONS = (0.25, 0.5, 1.0, 2.0)
NUM_MODES = tuple(range(1, 11))
#: The paper's repeats; tables of the problems that it shows once.
NUM_REPEATS, NUM_TABLES = 4, 5
#: Ours twice, as the paper has it and as the projection.
OURS = ("mbde-paper", "projection")
SKEWS = (0.5, 0.3)
#: Of the first figure: which system is shown at which epsilon.
FIRST = {"projection": 0.25, "mbde-paper": 0.25, "dpb-paper": 100.0, "dpgan": 5000.0}
#: Of the decision picture.
TOTALS, GROUP_SIZES, NUM_ROWS = (1.0, 10.0), (1, 3, 10, 100, 1000, 0), (1, 10, 100)
DECISION_DELTA = 1e-5
_DECISION_REPEATS, _DECISION_STEPS = 3, 2_000

# Of every list, what a quick run keeps.
_QUICK_EPSILONS, _QUICK_MODES, _QUICK_GROUPS = (5.0, 0.5), (1, 5), (1, 100, 0)


def first(*, quick: bool = False) -> list[Job]:
    """The first figure: ours at 0.25, DPB at 100 and DPGAN at 5,000, on the ring."""
    return [
        _job("ring", system, epsilon, quick=quick, options=[("delta", 0.1)] if system == "dpgan" else [])
        for system, epsilon in FIRST.items()
    ]


def ring(*, quick: bool = False) -> list[Job]:
    """Contours on the ring, DPB above ours."""
    return _contours("ring", RING_EPSILONS, quick=quick)


def random_2d(*, quick: bool = False) -> list[Job]:
    """Contours on random normals in the plane, DPB above ours."""
    return _contours("random-2d", PLANE_EPSILONS, quick=quick)


def _contours(problem: str, epsilons: Iterable[float], *, quick: bool) -> list[Job]:
    return [
        _job(name, system, epsilon, quick=quick)
        for epsilon in _some(epsilons, _QUICK_EPSILONS, quick=quick)
        for name, system in (
            (problem, "dpb-paper"),
            *((problem, ours) for ours in OURS),
            (f"{problem}-box", "projection"),
        )
    ]


def metrics(*, quick: bool = False) -> list[Job]:
    """NLL and mode coverage against epsilon, on the ring and the 1-D mixture."""
    jobs = []
    for problem in ("ring", "mixture-1d"):
        for epsilon in _some(PLANE_EPSILONS, _QUICK_EPSILONS, quick=quick):
            for repeat in range(1 if quick else NUM_TABLES):
                jobs += [_job(problem, system, epsilon, repeat, quick=quick) for system in (*OURS, "dpb-paper", "dpb")]
                jobs.append(_job(f"{problem}-box", "projection", epsilon, repeat, quick=quick))
                jobs.append(_job(problem, "dpb", epsilon, repeat, quick=quick, options=[("group_size", 0)]))
                if problem == "ring":
                    jobs.append(_job(problem, "unbounded", epsilon, repeat, quick=quick))
            jobs += [_job(problem, "limit", epsilon, quick=quick, options=[("skew", skew)]) for skew in SKEWS]
        jobs += [_job(problem, system, 1.0, quick=quick) for system in ("base", "kde")]
    return jobs


def random_1d(*, quick: bool = False) -> list[Job]:
    """Random normals on the line: DPB and ours, by number of modes, epsilon and repeat."""
    jobs = []
    for num_modes in _some(NUM_MODES, _QUICK_MODES, quick=quick):
        for epsilon in _some(LINE_EPSILONS, (0.5, 2.0), quick=quick):
            for repeat in range(2 if quick else NUM_REPEATS):
                name = f"random-1d-{num_modes}"
                jobs += [_job(name, system, epsilon, repeat, quick=quick) for system in ("dpb-paper", *OURS)]
                jobs.append(_job(name, "limit", epsilon, repeat, quick=quick, options=[("skew", 0.3)]))
    return jobs


def decision(problem: str, *, quick: bool = False) -> list[Job]:
    """A total budget spent by ours on a batch of k rows, and by baselines on protecting groups of g rows."""
    jobs = []
    for total in TOTALS[:1] if quick else TOTALS:
        for repeat in range(1 if quick else _DECISION_REPEATS):
            for k in NUM_ROWS:
                jobs.append(_job(problem, "projection", total, repeat, quick=quick, options=[("num_rows", k)]))
            for system in BASELINES:
                for group_size in _some(GROUP_SIZES, _QUICK_GROUPS, quick=quick):
                    options: list[Option] = [("delta", DECISION_DELTA), ("group_size", group_size)]
                    options += [("num_steps", _DECISION_STEPS)] if system == "dpgan" else []
                    jobs.append(_job(problem, system, total, repeat, quick=quick, options=options))
    jobs.append(_job(problem, "base", 1.0, quick=quick))
    return jobs


#: By the names of figures.
SWEEPS: dict[str, Callable[..., list[Job]]] = {
    "first": first,
    "ring": ring,
    "metrics": metrics,
    "coverage": random_1d,
    "random-1d": random_1d,
    "random-2d": random_2d,
    "decision": lambda *, quick=False: decision("ring-box", quick=quick),
    "decision-medical": lambda *, quick=False: decision("medical", quick=quick),
}


def _some(values: Iterable[float], few: Iterable[float], *, quick: bool) -> list[float]:
    return list(few if quick else values)


def _job(
    problem: str, system: str, epsilon: float, repeat: int = 0, *, quick: bool, options: Iterable[Option] = ()
) -> Job:
    quickly: list[Option] = [("quick", 1)] if quick else []
    return Job(problem, system, epsilon, repeat, tuple(sorted([*options, *quickly])))
