"""Machine code that outlives the process and is called without Numba: one file for each function and types.

Importing Numba and letting it load its own cache takes longer than most runs. What Numba has compiled is plain machine
code, though: a function of numbers and addresses that needs nothing of Numba as long as it allocates nothing and
returns whole numbers. So it is compiled once without its door to Python, stripped of everything else, and kept as an
object file; later processes link it with llvmlite, which Numba brings along, and call it through ctypes. A wheel brings
bitcode along for what short runs call: LLVM makes machine code of it for the processor at hand, without Numba.

How Numba passes arguments: where the result goes, where an error goes, then the arguments in order; an array as owner
(two words), size, size of an item, address, shape and strides; a tuple as its members.

A file begins with a digest of itself: one that is not what was written counts as none, and is compiled again. What
cannot be written is not kept, and nobody minds. The folder must be the user's own (see `private`): its files are run.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import re
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

Kinds = tuple[Any, ...]
"""What tells the types of arguments apart, as Numba would."""
Entry = Callable[[list[Any]], Any]
"""Runs on the words of the arguments."""

_DIGEST_BYTES = 32
_LAYOUT = 0x0001 | 0x0002 | 0x0100 | 0x0400
"""NumPy's flags: contiguous in C's order, in Fortran's, aligned, may be written."""
_PLAIN = {"memcpy", "memmove", "memset"}
"""Functions of every process that machine code may call."""
_SIGNED, _UNSIGNED, _TRUTH, _NOTHING = "signed", "unsigned", "truth", "nothing"

_TUPLES: dict[int, tuple[tuple[Any, ...], list[Any], list[Any]]] = {}
"""Named tuples of arrays come again and again: the last two, with their kinds and words. More would keep arrays."""
_MOST_TUPLES = 2


def take_apart(arguments: Sequence[Any], kinds: list[Any], words: list[Any]) -> None:
    """Add what tells the types of some arguments apart, and the words that machine code takes for them."""
    for each in arguments:
        kind = type(each)
        if kind is np.ndarray:
            kinds.append((each.dtype.char, each.ndim, each.flags.num & _LAYOUT))
            address = each.__array_interface__["data"][0]
            words += (0, 0, each.size, each.itemsize, address, *each.shape, *each.strides)
        elif kind is int or kind is float or kind is bool:
            kinds.append(kind)
            words.append(each)
        elif isinstance(each, np.generic):
            kinds.append(kind)
            words.append(each.item())
        elif isinstance(each, tuple):
            known = _TUPLES.get(id(each))
            if known is None or known[0] is not each:
                known = each, [(kind, len(each))], []
                take_apart(each, known[1], known[2])
                if len(_TUPLES) >= _MOST_TUPLES:
                    _TUPLES.clear()
                _TUPLES[id(each)] = known
            kinds += known[1]
            words += known[2]
        else:
            raise TypeError(f"compiled code takes numbers, arrays and tuples of them, not {kind.__name__}")


SHIPPED = Path(__file__).with_name("code")
"""What a wheel brings along (see build_wheel.py): functions of usual types as bitcode, for any processor of a kind."""
SHIPPING = False
"""True while that is made: what Numba compiles is added."""


def find_code(name: str, source: str, kinds: Kinds, folder: Path | None, build: Callable[[], Any]) -> Entry:
    """The code of a function for some types: from the folder, or else from what ships or `build` compiles, and kept."""
    label = f"{name} {source} {_spell(kinds)}"
    file = None if folder is None else folder / f"{_file_name(name, f'{label} {_host()}')}.code"
    payload = None if file is None else _read(file)
    if payload is None:
        payload = _emitted(f"{_file_name(name, label)}.bc", build)
        if file is not None:
            _write(file, payload)
    return _load(payload)


def _emitted(name: str, build: Callable[[], Any]) -> bytes:
    """Machine code for this processor: from what was shipped, or else compiled."""
    shipped = _read(SHIPPED / name)
    if shipped is not None:
        with suppress(RuntimeError):  # of another system, or of a newer LLVM
            return _emit(shipped)
    made = _strip(build())
    if SHIPPING:
        _write(SHIPPED / name, made)
    return _emit(made)


def _file_name(name: str, label: str) -> str:
    return f"{re.sub('[<>]', '', name)}-{hashlib.sha256(label.encode()).hexdigest()[:24]}"


def _spell(kinds: Kinds) -> str:
    """Names of types instead of types: the same in every process."""
    return " ".join(
        each.__name__ if isinstance(each, type) else f"{each[0].__name__}{each[1]}" if len(each) == 2 else str(each)
        for each in kinds
    )


@cache
def _host() -> str:
    import llvmlite
    from llvmlite import binding

    return f"{llvmlite.__version__} {binding.get_host_cpu_name()} {binding.get_host_cpu_features().flatten()}"


# Files ----------------------------------------------------------------------------------------------------------------


def _read(file: Path) -> bytes | None:
    try:
        data = file.read_bytes()
    except OSError:
        return None
    payload = data[_DIGEST_BYTES:]
    return payload if hashlib.sha256(payload).digest() == data[:_DIGEST_BYTES] else None


def _write(file: Path, payload: bytes) -> None:
    fresh = file.with_name(f".{secrets.token_hex(6)}.new")
    try:
        fresh.write_bytes(hashlib.sha256(payload).digest() + payload)
        fresh.replace(file)
    except OSError:  # a full disk, a folder that has gone: the next process compiles again
        with suppress(OSError):
            fresh.unlink(missing_ok=True)


# From Numba to an object file -----------------------------------------------------------------------------------------


def _strip(compiled: Any) -> bytes:
    """What Numba has compiled as one function that stands alone: a line about it, and LLVM's bitcode."""
    from llvmlite import binding

    library, symbol = compiled.library, compiled.fndesc.mangled_name
    returns = _returned(compiled.signature.return_type)
    module = binding.parse_assembly(_without_owners(str(library._final_module)))
    for each in (*module.functions, *module.global_variables):
        if not each.is_declaration and each.name != symbol:
            each.linkage = "internal"
    _drop_unused(module)
    declared = [each.name for each in (*module.functions, *module.global_variables) if each.is_declaration]
    needs = {name for name in declared if not name.startswith("llvm.")} - _PLAIN
    if needs:
        raise TypeError(f"compiled code that is kept allocates nothing; {symbol} needs {', '.join(sorted(needs))}")
    about = {"symbol": symbol, "returns": returns, "llvm": binding.llvm_version_info}
    return json.dumps(about).encode() + b"\n" + bytes(module.as_bitcode())


def _emit(made: bytes) -> bytes:
    """From bitcode to an object file. LLVM promises to read what older versions wrote, not what newer ones did."""
    from llvmlite import binding

    head, _, code = made.partition(b"\n")
    machine = _machine()
    if tuple(json.loads(head)["llvm"]) > binding.llvm_version_info:
        raise RuntimeError("code of a newer LLVM")
    module = binding.parse_bitcode(code)
    if module.triple != machine.triple:
        raise RuntimeError(f"code for {module.triple}")
    return head + b"\n" + bytes(machine.emit_object(module))


def _without_owners(text: str) -> str:
    """Arrays come without an owner, so that nothing is ever freed: what would do it is never reached."""
    return re.sub(
        r"^declare void @NRT_MemInfo_call_dtor\((ptr|i8\*).*$",
        r"define internal void @NRT_MemInfo_call_dtor(\1 %owner) {\n  unreachable\n}",
        text,
        flags=re.MULTILINE,
    )


def _drop_unused(module: Any) -> None:
    from llvmlite import binding

    if hasattr(binding, "create_module_pass_manager"):  # LLVM's older way
        older = binding.create_module_pass_manager()
        older.add_global_dce_pass()
        older.run(module)
        return
    passes = binding.create_new_module_pass_manager()
    passes.add_global_dead_code_eliminate_pass()
    passes.run(module, binding.create_pass_builder(_machine(), binding.create_pipeline_tuning_options()))


def _returned(result: Any) -> list[str]:
    """The whole numbers that a function returns, each in a word of its own."""
    types: Any = import_module("numba.core.types")
    if isinstance(result, types.NoneType):
        return [_NOTHING]
    if isinstance(result, types.Boolean):
        return [_TRUTH]
    members = list(result) if isinstance(result, types.BaseTuple) else [result]
    if not all(isinstance(each, types.Integer) and each.bitwidth == 64 for each in members):
        raise TypeError(f"compiled code that is kept returns whole numbers of 64 bits, not {result}")
    words = [_SIGNED if each.signed else _UNSIGNED for each in members]
    return ["tuple", *words] if isinstance(result, types.BaseTuple) else words


# From an object file to a call ----------------------------------------------------------------------------------------

_TURN = Lock()


@cache
def _machine() -> Any:
    from llvmlite import binding

    with suppress(RuntimeError):  # versions that do it themselves say so
        binding.initialize()
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return binding.Target.from_default_triple().create_target_machine(
        cpu=binding.get_host_cpu_name(), features=binding.get_host_cpu_features().flatten(), opt=3,
        codemodel="jitdefault", jit=True,
    )  # fmt: skip


@cache
def _linker() -> Any:
    from llvmlite import binding

    return binding.create_mcjit_compiler(binding.parse_assembly(""), _machine())


def _load(payload: bytes) -> Entry:
    from llvmlite import binding

    head, _, code = payload.partition(b"\n")
    about = json.loads(head)
    with _TURN:
        linker = _linker()
        linker.add_object_file(binding.ObjectFileRef.from_data(code))
        linker.finalize_object()
        address = linker.get_function_address(about["symbol"])
    return _entry(address, about["symbol"], about["returns"])


def _entry(address: int, symbol: str, returns: list[str]) -> Entry:
    """A function of words; the GIL is free while it runs."""
    call: Any = None
    read = _reader(returns)
    room = ctypes.c_int64 * (1 + len(returns))  # for an error and for the result

    def run(words: list[Any]) -> Any:
        nonlocal call
        if call is None:  # the words of a signature are always of the same types
            types = [ctypes.c_double if type(word) is float else ctypes.c_int64 for word in words]
            call = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, *types)(address)
        result = room()
        place = ctypes.addressof(result)
        status = call(place + 8, place, *words)
        if status not in (0, -2):  # fine, and fine with nothing to return
            raise RuntimeError(f"{symbol} ended with {status}")
        return read(result)

    return run


def _reader(returns: list[str]) -> Callable[[Any], Any]:
    """From the words of a result, which come behind that of an error, to what Python calls it."""
    first, *members = returns
    if first == "tuple":
        return lambda words: tuple(_number(word, kind) for word, kind in zip(words[1:], members, strict=False))
    return lambda words: _number(words[1], first)


def _number(word: int, kind: str) -> int | bool | None:
    if kind == _TRUTH:
        return bool(word & 1)
    if kind == _UNSIGNED:
        return word & 0xFFFF_FFFF_FFFF_FFFF
    return None if kind == _NOTHING else word
