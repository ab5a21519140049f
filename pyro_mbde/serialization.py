"""Distributions as plain dicts, and files that are written whole or not at all."""

from __future__ import annotations

import hashlib
import inspect
import io
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyro.distributions
import pyro.distributions.transforms
import torch
import torch.distributions
from torch import Tensor, nn
from torch.distributions import Distribution, Transform

from pyro_mbde._checks import argument_error
from pyro_mbde.private_files import write_atomically

#: Where the classes of an encoded distribution are looked up; nothing else can be named in a file.
_NAMESPACES: dict[str, Any] = {"pyro": pyro.distributions, "torch": torch.distributions}
_TRANSFORM_NAMESPACES: dict[str, Any] = {
    "pyro": pyro.distributions.transforms,
    "torch": torch.distributions.transforms,
}

#: Constructor arguments that describe the same thing: the one that the distribution was built with is kept.
_ALTERNATIVES = (("probs", "logits"), ("gate", "gate_logits"), ("scale_tril", "covariance_matrix", "precision_matrix"))
#: Constructor arguments kept under another name.
_ATTRIBUTES = {"base_distribution": "base_dist", "mask": "_mask"}


class UnknownDistributionError(TypeError):
    """A distribution or transform that cannot be described by a plain dict."""


def encode(value: Any) -> Any:
    """Describes a distribution by the arguments that would build it, in plain dicts, lists, numbers and tensors.

    Args:
        value: a distribution of ``pyro.distributions``, ``torch.distributions`` or this package, over parameters and
            transforms of the same kind; or one of its arguments.

    Returns:
        Something that ``torch.save`` writes and ``torch.load(weights_only=True)`` reads; :func:`decode` undoes it.

    Raises:
        UnknownDistributionError: a class is none of these, or keeps an argument of its constructor nowhere.

    Example:
        >>> encode(pyro.distributions.Normal(0.0, 1.0))
        {'distribution': 'pyro.Normal', 'arguments': {'loc': tensor(0.), 'scale': tensor(1.)}}
    """
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, bool | int | float | str | None):
        return value
    if isinstance(value, list | tuple):
        return [encode(item) for item in value]
    if isinstance(value, Distribution):
        return {"distribution": _name(type(value), _NAMESPACES), "arguments": _arguments(value)}
    if isinstance(value, Transform) and not isinstance(value, nn.Module):  # a module keeps more than its arguments
        return {"transform": _name(type(value), _TRANSFORM_NAMESPACES), "arguments": _arguments(value)}
    raise UnknownDistributionError(
        f"base must be built from distributions, transforms and tensors to be converted or saved, got a "
        f"{type(value).__name__} in it."
    )


def decode(node: Any) -> Any:
    """Builds what :func:`encode` described; distributions come without their argument checks.

    Raises:
        ValueError: the description names an unknown class or does not fit it.
    """
    if isinstance(node, list):
        return [decode(item) for item in node]
    if not isinstance(node, dict):
        return node
    try:
        arguments = {name: decode(argument) for name, argument in node["arguments"].items()}
        if "transform" in node:
            return _lookup(node["transform"], _TRANSFORM_NAMESPACES)(**arguments)
        cls = _lookup(node["distribution"], _NAMESPACES)
        if "validate_args" in inspect.signature(cls.__init__).parameters:
            arguments["validate_args"] = False
        return cls(**arguments)
    except (KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise ValueError(f"the description of a distribution must fit its class: {error}") from error


def map_tensors(function: Callable[[Tensor], Tensor], node: Any) -> Any:
    """Applies ``function`` to every tensor in a nest of dicts and lists."""
    if isinstance(node, dict):
        return {key: map_tensors(function, value) for key, value in node.items()}
    if isinstance(node, list):
        return [map_tensors(function, value) for value in node]
    return function(node) if isinstance(node, Tensor) else node


def register_distribution(cls: type[Distribution]) -> type[Distribution]:
    """Lets a distribution class of this package be encoded; used as a decorator."""
    _OWN_CLASSES[cls.__name__] = cls
    return cls


_OWN_CLASSES: dict[str, type[Distribution]] = {}


def _name(cls: type, namespaces: dict[str, Any]) -> str:
    if _OWN_CLASSES.get(cls.__name__) is cls:
        return f"pyro_mbde.{cls.__name__}"
    for prefix, namespace in namespaces.items():
        if getattr(namespace, cls.__name__, None) is cls:
            return f"{prefix}.{cls.__name__}"
    raise UnknownDistributionError(
        f"base must be built from pyro.distributions and torch.distributions to be converted or saved, got "
        f"{cls.__module__}.{cls.__qualname__}."
    )


def _lookup(name: str, namespaces: dict[str, Any]) -> Any:
    prefix, _, class_name = name.partition(".")
    cls = _OWN_CLASSES.get(class_name) if prefix == "pyro_mbde" else getattr(namespaces.get(prefix), class_name, None)
    if not (inspect.isclass(cls) and issubclass(cls, Distribution | Transform)):
        raise ValueError(f"a file must name distributions of pyro or torch, got {name!r}.")
    return cls


def _arguments(value: Distribution | Transform) -> dict[str, Any]:
    """The arguments that the constructor of ``value`` was called with, read back from its attributes."""
    names = [
        parameter.name
        for parameter in inspect.signature(type(value).__init__).parameters.values()
        if parameter.name not in ("self", "validate_args", "cache_size") and parameter.kind is not parameter.VAR_KEYWORD
    ]
    for alternatives in _ALTERNATIVES:
        if set(alternatives) & set(names):
            holder = getattr(
                value, "_categorical", value
            )  # which keeps the probabilities of one-hot and multinomial ones
            given = [name for name in alternatives if name in vars(holder) and _is_original(holder, name)]
            kept = (given or [name for name in alternatives if hasattr(value, name)])[:1]
            names = [name for name in names if name in kept or name not in alternatives]
    arguments = {}
    for name in names:
        attribute = _ATTRIBUTES.get(name, name)
        if not hasattr(value, attribute):
            raise UnknownDistributionError(
                f"base must keep its arguments to be converted or saved, got {type(value).__name__} without {name}."
            )
        arguments[name] = encode(getattr(value, attribute))
    return arguments


def _is_original(value: Any, name: str) -> bool:
    """Whether ``name`` was given, not computed on demand from its alternative (torch caches what it computes)."""
    given = getattr(value, "_param", None)  # what Bernoulli, Categorical and their kin were built with
    return given is None or given is vars(value)[name]


def write_file(path: str | os.PathLike[str], kind: str, version: int, content: dict[str, Any]) -> None:
    """Writes a plain dict of tensors, numbers and lists, tagged with what it describes; tensors go to the CPU."""
    tagged = {"format": f"pyro_mbde.{kind}", "version": version, **content}
    tagged = map_tensors(lambda tensor: tensor.detach().cpu().clone(), tagged)
    write_atomically(lambda file: torch.save(tagged, file), path)


def read_file(path: str | os.PathLike[str], kind: str, versions: tuple[int, ...]) -> dict[str, Any]:
    """Reads what :func:`write_file` wrote, onto the CPU; runs no code from the file.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is damaged, of another kind or of another version.
    """
    raw = Path(path).read_bytes()
    try:
        content = torch.load(io.BytesIO(raw), map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged archive raises almost anything, OSError and KeyError included
        raise damaged_file(path, kind) from error
    if not isinstance(content, dict) or content.get("format") != f"pyro_mbde.{kind}":
        raise damaged_file(path, kind)
    if content.get("version") not in versions:
        known = " or ".join(map(str, versions))
        raise ValueError(
            argument_error("file version", f"be {known}", content.get("version"), "Update pyro_mbde to read it.")
        )
    return content


def canonical_digest(content: dict[str, Any]) -> str:
    """Returns the SHA-256 of a plain dict of tensors, numbers, text, lists and dicts, in hexadecimal digits.

    The same on every machine, device and version of PyTorch: keys are sorted, numbers and tensors taken in
    little-endian bytes, and everything is preceded by its kind and length, so that no two contents give the same bytes.

    Example:
        >>> canonical_digest({"a": 1.0, "b": [1, None]})[:16]
        '0a8f5fee50078bef'
        >>> canonical_digest({"a": [1.0], "b": [1, None]}) == canonical_digest({"a": 1.0, "b": [1, None]})
        False
    """
    digest = hashlib.sha256()

    def add(kind: str, data: bytes) -> None:
        digest.update(f"{kind}:{len(data)}:".encode() + data)

    def visit(node: Any) -> None:
        if isinstance(node, dict):
            add("dict", str(len(node)).encode())
            for key in sorted(node):
                visit(key)
                visit(node[key])
        elif isinstance(node, list | tuple):
            add("list", str(len(node)).encode())
            for item in node:
                visit(item)
        elif isinstance(node, Tensor):
            array = node.detach().cpu().contiguous().numpy()
            array = array.astype(array.dtype.newbyteorder("<"), copy=False)
            add("tensor", f"{array.dtype.str}{array.shape}".encode())
            add("data", array.tobytes())
        elif isinstance(node, float):
            add("float", struct.pack("<d", node))
        elif isinstance(node, bool | int | str | None):
            add(type(node).__name__, str(node).encode())
        else:
            raise TypeError(
                argument_error("content", "be of tensors, numbers, text, lists and dicts", type(node).__name__)
            )

    visit(content)
    return digest.hexdigest()


def damaged_file(path: str | os.PathLike[str], kind: str) -> ValueError:
    """Returns the one error for a file that does not hold what it should."""
    remedy = f"Write it with {kind}.save."
    return ValueError(argument_error("path", f"name an undamaged file of a {kind}", os.fspath(path), remedy))
