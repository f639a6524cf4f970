"""Triton's interpreter in less time: what it computes again for every operation is remembered.

An operation of a kernel makes some ten descriptions of shapes and types, which takes longer than
its numbers do. Only functions of plain values are replaced, by tables of what they returned.
"""

from typing import Any

import pytest

_TUPLES: dict[tuple[int, ...], Any] = {}
_BLOCKS: dict[tuple[str, tuple[int, ...]], dict[str, Any]] = {}
_TENSORS: dict[tuple[int, ...], dict[str, Any]] = {}
_INTEGERS = {int}
_NUMPY: dict[str, Any] = {}


def quicken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the interpreter remember types."""
    import triton.language.core as core
    import triton.runtime.interpreter as interpreter

    type_of, make_block = core._type_for_tuple_values, core.block_type.__init__
    make_tensor = core.tensor.__init__
    unwrap, numpy_type = core._unwrap_shape, interpreter._get_np_dtype

    def whole(values: Any) -> tuple[int, ...] | None:
        """Sizes as plain integers, if that is what they are."""
        plain = tuple([x.value if type(x) is core.constexpr else x for x in values])
        return plain if _INTEGERS.issuperset(map(type, plain)) else None

    def tuple_type(values: Any, fields: Any = None) -> Any:
        # Plain integers and those of the compiler have the same type.
        key = whole(values) if fields is None else None
        if key is None:
            return type_of(values, fields)
        if key not in _TUPLES:
            _TUPLES[key] = type_of(values)
        return _TUPLES[key]

    def block(self: Any, element: Any, shape: Any) -> None:
        sizes = whole(shape)
        if sizes is None:
            return make_block(self, element, shape)
        key = (f"{element} {id(type(element))}", sizes)
        if key not in _BLOCKS:
            make_block(self, element, shape)
            _BLOCKS[key] = dict(self.__dict__)
        self.__dict__.update(_BLOCKS[key], element_ty=element)

    def tensor(self: Any, handle: Any, type: Any) -> None:  # noqa: A002
        sizes = tuple(type.shape.values) if type.is_block() else ()
        if sizes not in _TENSORS:
            make_tensor(self, handle, type)
            shaped = ("numel", "shape")
            assert {*self.__dict__} == {"handle", "type", "dtype", *shaped}
            _TENSORS[sizes] = {name: self.__dict__[name] for name in shaped}
        self.__dict__.update(_TENSORS[sizes], handle=handle, type=type, dtype=type.scalar)

    def unwrapped(shape: Any) -> Any:
        if type(shape) in (list, tuple, core.tuple):
            sizes = whole(shape)
            return unwrap(shape) if sizes is None else list(sizes)
        return unwrap(shape)

    def as_numpy(kind: Any) -> Any:
        name = str(kind.scalar)
        if name not in _NUMPY:
            _NUMPY[name] = numpy_type(kind)
        return _NUMPY[name]

    monkeypatch.setattr(core, "_type_for_tuple_values", tuple_type)
    monkeypatch.setattr(core.block_type, "__init__", block)
    monkeypatch.setattr(core.tensor, "__init__", tensor)
    monkeypatch.setattr(core, "_unwrap_shape", unwrapped)
    monkeypatch.setattr(interpreter, "_get_np_dtype", as_numpy)
