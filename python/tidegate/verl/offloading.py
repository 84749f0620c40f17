# SPDX-License-Identifier: Apache-2.0
"""verl's load and offload of models and optimizers, with host copies of exactly their size.

Asked for by TIDEGATE_OFFLOAD=1, and done in the mode `on`. Our part runs before verl's own
function: it moves the tensors that verl's would move, by `HostCopies`, and verl's own then finds
them moved and does the rest: what FSDP has to look at again, Megatron's gradients, caches. So
where our part cannot do it, which is said once, verl's own does all of it, in every version.

A model or an optimizer has host copies as long as it lives. The order that all of it relies on:
everything is copied and waited for before the first tensor is changed."""

from __future__ import annotations

import os
import sys
import weakref
from typing import TYPE_CHECKING, Any, Callable, Iterator, List, MutableMapping, Tuple

from .. import card, hostcopies, modes, seams
from ..receipts import Receipt
from . import process
from .versions import Target

if TYPE_CHECKING:
    from typing import Any as FSDP

OPTION = "TIDEGATE_OFFLOAD"
MODEL, OPTIMIZER = "model", "optimizer"  # tags in the ledger

Move = Callable[[hostcopies.HostCopies], Any]
_copies: MutableMapping[Any, hostcopies.HostCopies] = weakref.WeakKeyDictionary()


def is_asked() -> bool:
    """Whether verl's functions are to be replaced."""
    said = os.environ.get(OPTION, "").strip()
    if said not in ("", "0", "1"):
        seams.warn_once(OPTION, f"{OPTION}={said!r} is neither 0 nor 1; taken as 0")
    return said == "1" and modes.mode() == modes.ON


def device_of(where: card.Card) -> str:
    """What host copies are pinned for."""
    return f"cuda:{where.index}"


def _of(owner: Any, name: str, where: card.Card) -> hostcopies.HostCopies:
    if owner not in _copies:
        _copies[owner] = hostcopies.HostCopies(name, device=device_of(where))
    return _copies[owner]


def _ahead(owner: Any, name: str, move: Move) -> bool:
    """Our part of one call; False where verl's own function has to do it all. Whatever failed has
    been let go when this returns: verl's may need the memory."""
    where = process.here()
    if modes.mode() != modes.ON or where is None:
        return False
    try:
        done = move(_of(owner, name, where))
    except Exception as problem:
        seams.warn_once(f"verl {name} offload", f"cannot move the {name} ({problem}): verl's own "
                        "function does")
        return False
    if isinstance(done, Receipt) and done.copied_bytes > 0:
        seams.warn_once(f"verl {name} {done.operation}", done.line())
    return True


# ---- FSDP: the model ----------------------------------------------------------------------------

def _fsdp_tensors(home: Any, model: Any) -> List[Any]:
    """What verl moves: FSDP1's flat parameters, else parameters, gradients and buffers."""
    if home.fsdp_version(model) == 1:
        home._lazy_init(model, model)  # as verl's function begins: it names the handles
        flat = [handle.flat_param for handle in model._all_handles if not handle._offload_params]
        return [tensor for one in flat for tensor in (one, one._local_shard)]
    for module in model.modules():
        if hasattr(module, "reshard"):
            module.reshard()  # as FSDP2 does in `to`: the sharded parameters are the model's
    parameters = list(model.parameters())
    gradients = [one.grad for one in parameters if one.grad is not None]
    return [*parameters, *gradients, *model.buffers()]


def fsdp_model_out(original: Any, target: Target) -> Callable[..., None]:
    """verl.utils.fsdp_utils.offload_fsdp_model_to_cpu."""
    def offload_fsdp_model_to_cpu(model: FSDP, empty_cache: bool = True):
        _ahead(model, MODEL, lambda copies: copies.offload(_fsdp_tensors(_home(target), model),
                                                           hold=False))
        original(model, empty_cache)

    return offload_fsdp_model_to_cpu


def fsdp_model_in(original: Any, target: Target) -> Callable[..., None]:
    """verl.utils.fsdp_utils.load_fsdp_model_to_gpu."""
    def load_fsdp_model_to_gpu(model: FSDP):
        _ahead(model, MODEL, lambda copies: copies.load(_fsdp_tensors(_home(target), model)))
        original(model)

    return load_fsdp_model_to_gpu


# ---- FSDP: the optimizer ------------------------------------------------------------------------

def _state_tensors(states: Any) -> Iterator[Any]:
    """The tensors of an optimizer's state, a mapping of mappings."""
    for state in list(states.values()):
        yield from (value for value in state.values() if hasattr(value, "untyped_storage"))


def fsdp_optimizer_out(original: Any, target: Target) -> Callable[..., None]:
    """verl.utils.fsdp_utils.offload_fsdp_optimizer."""
    def offload_fsdp_optimizer(optimizer):
        _ahead(optimizer, OPTIMIZER,
               lambda copies: copies.offload(_state_tensors(optimizer.state), hold=False))
        original(optimizer)

    return offload_fsdp_optimizer


def fsdp_optimizer_in(original: Any, target: Target) -> Callable[..., None]:
    """verl.utils.fsdp_utils.load_fsdp_optimizer."""
    def load_fsdp_optimizer(optimizer, device_id):
        _ahead(optimizer, OPTIMIZER,
               lambda copies: copies.load(_state_tensors(optimizer.state)))
        original(optimizer, device_id)

    return load_fsdp_optimizer


# ---- Megatron: the model ------------------------------------------------------------------------

def _home(target: Target) -> Any:
    """verl's module, whose other names its functions go by."""
    return sys.modules[target.module]


def _split(home: Any, models: Any) -> Tuple[List[Any], List[Any]]:
    """(chunks with flat buffers, those without, such as a reference model's)."""
    flat = [chunk for chunk in models if isinstance(chunk, home.DDP)]
    return flat, [chunk for chunk in models if not isinstance(chunk, home.DDP)]


def _frozen(chunks: List[Any]) -> List[Any]:
    return [one for chunk in chunks for one in chunk.module.parameters() if not one.requires_grad]


def _plain(chunks: List[Any]) -> List[Any]:
    found = [one for chunk in chunks for _, one in chunk.named_parameters()]
    return found + [one.grad for one in found if one.grad is not None]


def _empty_buffers(copies: hostcopies.HostCopies, chunks: List[Any]) -> None:
    """Parameters of flat buffers into `cpu_data`, where verl's own function looks for them, and
    their storages emptied: the views that the model's parameters are stay what they are."""
    full = [buffer.param_data for chunk in chunks
            for buffer in [*chunk.buffers, *chunk.expert_parallel_buffers]
            if buffer.param_data.untyped_storage().nbytes() > 0]
    new = [data for data in full if not _has_copy(copies, data)]
    fresh = dict(zip(map(id, new), copies.like(new)))
    copies.copy((fresh.get(id(data), getattr(data, "cpu_data", None)), data) for data in full)
    for chunk in chunks:
        for buffer in [*chunk.buffers, *chunk.expert_parallel_buffers]:
            data = buffer.param_data
            if data.untyped_storage().nbytes() == 0:
                continue
            data.cpu_data = fresh.get(id(data), getattr(data, "cpu_data", None))
            buffer.param_data_size = data.untyped_storage().nbytes() // data.element_size()
            data.untyped_storage().resize_(0)


def _flat_out(copies: hostcopies.HostCopies, chunks: List[Any]) -> Receipt:
    _empty_buffers(copies, chunks)
    return copies.offload(_frozen(chunks), hold=False)


def _has_copy(copies: hostcopies.HostCopies, data: Any) -> bool:
    copy = getattr(data, "cpu_data", None)
    return (copy is not None and copies.holds(copy) and copy.shape == data.shape
            and copy.dtype == data.dtype)


def megatron_model_out(original: Any, target: Target) -> Callable[..., None]:
    """verl.utils.megatron_utils.offload_megatron_model_to_cpu."""
    def offload_megatron_model_to_cpu(models):
        home, chunks = _home(target), list(models)
        flat, plain = _split(home, chunks)
        if flat:
            _ahead(flat[0], MODEL, lambda copies: _flat_out(copies, flat))
        # Verl's own would empty the storages that it takes for the card's: they are ours by then.
        if plain and _ahead(plain[0], MODEL,
                            lambda copies: copies.offload(_plain(plain), hold=False)):
            for chunk in plain:
                getattr(home, "_clear_te_fp8_weight_workspaces", lambda _: 0)(chunk)
            chunks = flat
        original(chunks)

    return offload_megatron_model_to_cpu


def megatron_model_in(original: Any, target: Target) -> Callable[..., None]:
    """verl.utils.megatron_utils.load_megatron_model_to_gpu. Flat buffers it fills itself, from
    pinned memory."""
    def load_megatron_model_to_gpu(models, load_grad=True, load_frozen_params=True):
        flat, plain = _split(_home(target), models)
        if flat and load_frozen_params:
            _ahead(flat[0], MODEL, lambda copies: copies.load(_frozen(flat)))
        if plain:
            _ahead(plain[0], MODEL, lambda copies: copies.load(_plain(plain)))
        original(models, load_grad, load_frozen_params)

    return load_megatron_model_to_gpu


# ---- Megatron: the optimizer --------------------------------------------------------------------

_MOVED = ("exp_avg", "exp_avg_sq", "master_param")
_HYBRID = ("sub_optimizers", "inner_param_to_orig_param", "state")


def _leaves(group: Any) -> Iterator[Any]:
    """The tensors of one level of lists in another, as Megatron has its main parameters."""
    for one in group if isinstance(group, list) else [group]:
        yield from (leaf for leaf in (one if isinstance(one, list) else [one]) if leaf is not None)


def _megatron_tensors(home: Any, optimizers: Any, is_in: bool) -> Iterator[Any]:
    chained = isinstance(optimizers, home.ChainedOptimizer)
    for one in optimizers.chained_optimizers if chained else [optimizers]:
        yield from _leaves(getattr(one, "shard_fp32_from_float16_groups", None))
        inner = one.optimizer
        if inner is None or is_in and hasattr(inner, "_move_new_state_to_right_device"):
            continue  # its own function knows which of its state is the card's
        if all(hasattr(inner, name) for name in _HYBRID):
            for optimizer in inner.sub_optimizers:
                yield from _state_tensors(optimizer.state)
        else:
            for state in inner.state.values():
                yield from (state[name] for name in _MOVED if name in state)


def megatron_optimizer_out(original: Any, target: Target) -> Callable[..., None]:
    """verl.utils.megatron_utils.offload_megatron_optimizer."""
    def offload_megatron_optimizer(optimizers):
        _ahead(optimizers, OPTIMIZER, lambda copies: copies.offload(
            _megatron_tensors(_home(target), optimizers, is_in=False), hold=False))
        original(optimizers)

    return offload_megatron_optimizer


def megatron_optimizer_in(original: Any, target: Target) -> Callable[..., None]:
    """verl.utils.megatron_utils.load_megatron_optimizer."""
    def load_megatron_optimizer(optimizers):
        _ahead(optimizers, OPTIMIZER, lambda copies: copies.load(
            _megatron_tensors(_home(target), optimizers, is_in=True)))
        original(optimizers)

    return load_megatron_optimizer
