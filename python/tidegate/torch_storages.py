# SPDX-License-Identifier: Apache-2.0
"""Tensors by the storages that they look into, and how a tensor comes to look into another one.

Tensors that share a storage go on sharing one wherever they are put, and of a storage only what
they reach is copied. A DTensor is its local tensor, in a wrapper that says where that is. Nothing
here waits for a device."""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, NamedTuple, Tuple

from .errors import BadValue

ALIGN = 64  # where a copy begins: a cache line
_WIDEST = 16  # bytes of the largest type


class Group:
    """Tensors on one storage; low and high: the bytes of it that they reach."""

    def __init__(self, storage: Any) -> None:
        self.storage = storage
        self.low, self.high = storage.nbytes(), 0
        self.tensors: List[Any] = []

    def add(self, tensor: Any, local: Any) -> None:
        size = local.element_size()
        begin = local.storage_offset() * size
        last = sum((count - 1) * step for count, step in zip(local.shape, local.stride()))
        self.low = min(self.low, begin // _WIDEST * _WIDEST)
        self.high = max(self.high, begin + (last + 1) * size)
        if self.high > self.storage.nbytes():
            raise BadValue(0, f"a tensor of shape {tuple(tensor.shape)} reaches beyond its storage "
                              f"of {self.storage.nbytes()} bytes, which somebody has emptied")
        self.tensors.append(tensor)

    @property
    def size_bytes(self) -> int:
        return self.high - self.low

    def bytes(self, torch: Any) -> Any:
        """What is copied, as a tensor of bytes."""
        return on_storage(torch, self.storage, torch.uint8, self.low, (self.size_bytes,), (1,))


def local_of(tensor: Any) -> Any:
    """The tensor that has the bytes: of a DTensor the local one."""
    return tensor._local_tensor if _is_distributed(tensor) else tensor


def _is_distributed(tensor: Any) -> bool:
    return hasattr(tensor, "_local_tensor") and hasattr(tensor, "_spec")


def listed(torch: Any, tensors: Iterable[Any]) -> List[Any]:
    """The tensors that a caller gives. Raises BadValue for what is none; also for one alone, of
    which rows would be taken."""
    if isinstance(tensors, torch.Tensor) or not isinstance(tensors, Iterable):
        raise BadValue(0, f"{type(tensors).__name__} is no list of tensors: give several, such as "
                          "model.parameters(), or [tensor]")
    found = list(tensors)
    for tensor in found:
        if not isinstance(tensor, torch.Tensor):
            raise BadValue(0, f"{type(tensor).__name__} is no tensor: give tensors, such as "
                              "model.parameters() and those of the optimizer's state")
    return found


def checked(torch: Any, tensors: Iterable[Any]) -> List[Any]:
    """Each tensor once. Raises BadValue for what has no plain bytes, before anything is done."""
    found = list({id(tensor): tensor for tensor in listed(torch, tensors)}.values())
    for tensor in found:
        local = local_of(tensor)
        why = _unfit(torch, local)
        if why:
            raise BadValue(0, f"a {why} of shape {tuple(tensor.shape)} has no plain bytes to copy: "
                              "leave it out")
    return found


def _unfit(torch: Any, local: Any) -> str:
    if local.layout != torch.strided:
        return f"tensor of layout {local.layout}"
    if local.is_meta or local.is_quantized:
        return "meta tensor" if local.is_meta else "quantized tensor"
    if hasattr(local, "__tensor_flatten__") or local.is_conj() or local.is_neg():
        return f"{type(local).__name__} that wraps others"
    return ""


def grouped(tensors: Iterable[Any]) -> Tuple[List[Group], List[Any]]:
    """(groups, tensors without elements). Raises BadValue for a storage that was emptied."""
    groups: Dict[int, Group] = {}
    empty = []
    for tensor in tensors:
        local = local_of(tensor)
        if local.numel() == 0:
            empty.append(tensor)
            continue
        storage = local.untyped_storage()
        group = groups.setdefault(storage.data_ptr(), Group(storage))
        group.add(tensor, local)
    return list(groups.values()), empty


def on_storage(torch: Any, storage: Any, dtype: Any, offset: int, shape: Any, stride: Any) -> Any:
    """A tensor that looks into a storage; offset in elements."""
    return torch.empty(0, dtype=dtype, device=storage.device).set_(storage, offset, shape, stride)


class Change(NamedTuple):
    """A tensor, what it looks into now, and what it is to look into."""

    tensor: Any
    before: Any
    after: Any


def changes_to(torch: Any, group: Group, storage: Any) -> List[Change]:
    """Every tensor of the group onto a storage that begins at the group's low byte."""
    made = []
    for tensor in group.tensors:
        local = local_of(tensor)
        offset = local.storage_offset() - group.low // local.element_size()
        made.append(Change(tensor, local.data, on_storage(torch, storage, local.dtype, offset,
                                                          local.shape, local.stride())))
    return made


def apply(changes: List[Change]) -> None:
    """All of them or none. Raises BadValue for a tensor that torch does not let go elsewhere."""
    begun: List[Change] = []
    try:
        for change in changes:
            begun.append(change)
            _point(change.tensor, change.after)
    except BaseException as problem:
        # What torch refuses is as before. Ctrl-C comes when the last one may have been moved.
        refused = begun.pop() if isinstance(problem, Exception) else None
        for change in reversed(begun):
            _point(change.tensor, change.before)
        if isinstance(problem, RuntimeError) and refused is not None:
            raise BadValue(0, f"a {type(refused.tensor).__name__} cannot be moved in place: "
                              f"{problem}") from problem
        raise


def _point(tensor: Any, local: Any) -> None:
    if not _is_distributed(tensor):
        tensor.data = local
        return
    kind = next(kind for kind in type(tensor).__mro__ if kind.__name__ == "DTensor")
    tensor.data = kind(local, tensor._spec, requires_grad=tensor.requires_grad)
    tensor._local_tensor = local
