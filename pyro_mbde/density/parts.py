"""What a density is made of, as values: in another dtype, on another device, in a file."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from pyro_mbde._checks import argument_error
from pyro_mbde._torch_state import with_gradients
from pyro_mbde.density import copula, flow_copula  # noqa: F401  # their classes are registered where a file is read
from pyro_mbde.density.base import convert_base, describe_base, note_schema, noted_schema
from pyro_mbde.density.bounds import Bounds, Certificate
from pyro_mbde.density.kinds_of_statistics import describe_statistics, rebuild_statistics
from pyro_mbde.density.normalizer import LogNormalizer
from pyro_mbde.density.scoring import Arithmetic
from pyro_mbde.private_files import warn_beside_card
from pyro_mbde.serialization import canonical_digest, damaged_file, decode, read_file, write_file

FILE_FORMAT = "MollifiedExpFamily"
_FILE_VERSION, _READABLE_VERSIONS = 4, (3, 4)
#: Of what a fingerprint is taken: the layout of version 3, so that no ledger loses sight of a density.
_FINGERPRINT_VERSION = 3
#: Earlier versions did not note for what arithmetic a certificate was proved.
_NOT_NOTED = {name: "not noted" for name in Arithmetic._fields}


class DensityParts(NamedTuple):
    """The arguments of a :class:`~pyro_mbde.MollifiedExpFamily` and its batch shape. As sensitive as the table."""

    base: Distribution
    statistics: nn.Module
    natural_params: Tensor
    log_normalizer: LogNormalizer
    offset: float
    shrinkage: float
    bounds: Bounds
    certificate: Certificate | None
    certified_on: Arithmetic | None
    batch_shape: torch.Size
    salt: str  # 128 random bits in hexadecimal digits, made for each fitted density

    def to(self, target: str | torch.device | torch.dtype) -> DensityParts:
        """Returns copies on another device or in another floating-point type."""
        if isinstance(target, torch.dtype) and target not in (torch.float32, torch.float64):
            raise TypeError(argument_error("target", "be a device, torch.float32 or torch.float64", target))
        with with_gradients():  # the copies can be differentiated wherever they are made
            if isinstance(target, torch.dtype):
                base = convert_base(self.base, dtype=target)
            else:
                base = convert_base(self.base, device=torch.device(target))
            return self._replace(base=base, statistics=copy.deepcopy(self.statistics).to(target))

    def write(self, path: str | os.PathLike[str], extra: Mapping[str, Any] | None = None) -> None:
        """Writes the parts to a file of plain tensors, numbers and text, replaced only once all is written.

        ``extra`` values are written beside them, and passed over by :meth:`read`. A
        :class:`~pyro_mbde.PrivacyLeakWarning` tells if the file goes into a folder that holds a release card.
        """
        warn_beside_card(path, "A saved density", stacklevel=4)
        certified_on = None if self.certified_on is None else self.certified_on._asdict()
        noted = {"certified_on": certified_on, "schema": noted_schema(self.base)}
        write_file(path, FILE_FORMAT, _FILE_VERSION, {**self._content(), **noted, **(extra or {})})

    def fingerprint(self) -> str:
        """Returns the SHA-256, in hexadecimal digits, of the salt and all of the density except its batch shape."""
        content = self._replace(batch_shape=torch.Size())._content()
        return canonical_digest({"format": FILE_FORMAT, "version": _FINGERPRINT_VERSION, **content})

    def _content(self) -> dict[str, Any]:
        certificate = self.certificate
        return {
            "base": describe_base(self.base),
            "statistics": describe_statistics(self.statistics),
            "natural_params": self.natural_params,
            "log_normalizer": [self.log_normalizer.value, self.log_normalizer.standard_error],
            "offset": self.offset,
            "shrinkage": self.shrinkage,
            "bounds": list(self.bounds),
            "certificate": None if certificate is None else [certificate.tolerance, certificate.delta],
            "batch_shape": list(self.batch_shape),
            "salt": self.salt,
        }

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> DensityParts:
        """Reads what :meth:`write` wrote, onto the CPU; runs no code from the file."""
        content = read_parts_file(path)
        try:
            certificate = content["certificate"]
            certified_on = content["certified_on"] if content["version"] > 3 else _NOT_NOTED
            base, schema = decode(content["base"]), content.get("schema")
            if not isinstance(schema, Mapping | None):
                raise TypeError("schema must be a dict")
            note_schema(base, schema)
            return cls(
                base=base,
                statistics=rebuild_statistics(content["statistics"]),
                natural_params=content["natural_params"],
                log_normalizer=LogNormalizer(*content["log_normalizer"]),
                offset=content["offset"],
                shrinkage=content["shrinkage"],
                bounds=Bounds(*content["bounds"]),
                certificate=None if certificate is None else Certificate(*certificate),
                certified_on=None if certificate is None else Arithmetic(**certified_on),
                batch_shape=torch.Size(content["batch_shape"]),
                salt=content["salt"],
            )
        except (KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
            raise damaged_file(path, FILE_FORMAT) from error


def read_parts_file(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads the plain content of a density's file, with what was written beside its parts."""
    return read_file(path, FILE_FORMAT, _READABLE_VERSIONS)
