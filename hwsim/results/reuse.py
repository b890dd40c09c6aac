"""How often a loaded value is used: what the accesses of a kernel move, tensor by tensor."""

from __future__ import annotations

from collections import defaultdict

from hwsim.kernels.kernel import Kernel


def elements_loaded(kernel: Kernel) -> dict[str, float]:
    """Elements of each tensor that are loaded into registers, vectors counted by what is in them."""
    loaded: defaultdict[str, float] = defaultdict(float)
    for block in kernel.blocks():
        for step in block.steps():
            for nest in step.nests:
                for access in nest.accesses:
                    if not access.write:
                        loaded[access.tensor] += float(nest.count(access) * access.size * step.repeat)
    sizes = {name: view.element_bits / 8 for name, view in kernel.tensors.items()}
    return {name: count / sizes[name] for name, count in loaded.items() if name in sizes}
