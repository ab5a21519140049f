"""One logistic fit."""

from __future__ import annotations

import math

import pytest
import torch
from densities import normal

from pyro_mbde import WeakLearner
from pyro_mbde.density.base import base_location_scale


class TestWeakLearner:
    def test_recovers_a_log_ratio(self) -> None:
        """Between N(1, 1) and N(0, 1) the log-ratio is x - 1/2."""
        learner = WeakLearner(num_frequencies=0, num_steps=300)
        hypothesis = learner.fit(torch.randn(20_000, 1) + 1, torch.randn(20_000, 1), base_location_scale(normal(1)))
        grid = torch.linspace(-1.5, 2.5, 50).unsqueeze(1)
        assert torch.allclose(hypothesis.classifier.logits(grid), grid - 0.5, atol=0.15)
        # Jensen-Shannon: the least loss is below that of a coin
        assert 0.5 < hypothesis.loss < 2 * math.log(2)

    @pytest.mark.parametrize("optimizer", ["adamw", "nesterov", "sgd"])
    @pytest.mark.parametrize("batch_size", [64, None])
    def test_optimizers(self, optimizer: str, batch_size: int | None) -> None:
        learner = WeakLearner(
            hidden_sizes=(8,),
            optimizer=optimizer,
            learning_rate=0.05,
            num_steps=150,
            batch_size=batch_size,
            num_frequencies=0,
        )
        steps: list[int] = []
        hypothesis = learner.fit(
            torch.randn(500, 2) + 2,
            torch.randn(400, 2),
            base_location_scale(normal(2)),
            on_step=lambda: steps.append(1),
        )
        assert len(steps) == 150
        assert hypothesis.loss < 1.0
        assert not any(parameter.requires_grad for parameter in hypothesis.classifier.parameters())

    def test_divergence_is_an_error(self) -> None:
        learner = WeakLearner(optimizer="sgd", learning_rate=1e38, num_steps=20, num_frequencies=0)
        with pytest.raises(ValueError, match="training must keep its loss finite"):
            learner.fit(torch.randn(100, 2), torch.randn(100, 2), base_location_scale(normal(2)))

    def test_hidden_sizes_of_the_wrong_kind(self) -> None:
        with pytest.raises(TypeError, match="hidden_sizes must be a sequence"):
            WeakLearner(hidden_sizes=5)  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("option", "match"),
        [
            ({"link": "none"}, "link must be one of"),
            ({"activation": "none"}, "activation must be one of"),
            ({"optimizer": "none"}, "optimizer must be one of"),
            ({"hidden_sizes": ()}, "hidden_sizes must name at least one layer"),
            ({"hidden_sizes": (0,)}, "hidden_sizes must be at least 1"),
            ({"num_frequencies": -1}, "num_frequencies must be at least 0"),
            ({"frequency_scale": (0.0, 1.0)}, "frequency_scale must be finite and above 0"),
            ({"learning_rate": 0.0}, "learning_rate must be finite and above 0"),
            ({"learning_rate": math.nan}, "learning_rate must be finite and above 0"),
            ({"momentum": 1.0}, "momentum must be in"),
            ({"weight_decay": -1.0}, "weight_decay must be at least 0"),
            ({"num_steps": 0}, "num_steps must be at least 1"),
            ({"batch_size": 0}, "batch_size must be at least 1"),
        ],
    )
    def test_arguments(self, option: dict[str, object], match: str) -> None:
        with pytest.raises(ValueError, match=match):
            WeakLearner(**option)  # type: ignore[arg-type]

    @pytest.mark.parametrize("link", ["clamp", "tanh"])
    def test_the_papers(self, link: str) -> None:
        learner = WeakLearner.paper(link)
        assert (learner.hidden_sizes, learner.activation, learner.link) == ((25, 25, 25), "tanh", link)
        assert (learner.optimizer, learner.learning_rate, learner.num_steps) == ("nesterov", 0.01, 750)
        assert (learner.batch_size, learner.num_frequencies) == (None, 0)
        with pytest.raises(ValueError, match="link must be one of"):
            WeakLearner.paper("none")
