"""The computer at hand, as far as its operating system tells: name, cores, caches, vectors; and the stock machine that
is nearest to it. Linux on x86 and Arm, and macOS; elsewhere a clear refusal."""

from __future__ import annotations

import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path

from hwsim.errors import InputError

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
CPUINFO = Path("/proc/cpuinfo")


@dataclass(frozen=True)
class KnownCache:
    """A cache as the system describes it; None where it does not say."""

    level: int
    size_bytes: int
    line_bytes: int
    ways: int | None


@dataclass(frozen=True)
class Computer:
    """What the operating system knows."""

    model: str
    cores: int
    caches: tuple[KnownCache, ...]
    vector_bits: int
    nearest: str
    """The stock machine from which everything comes that is not measured."""


def this_computer() -> Computer:
    """The computer at hand; refused where nothing is known of its system."""
    system = platform.system()
    if system == "Linux":
        return _linux()
    if system == "Darwin":
        return _macos()
    raise InputError(f"measuring works on Linux and macOS so far, not on {system or 'this system'}")


def _linux() -> Computer:
    facts: dict[str, str] = {}
    for line in _read(CPUINFO).splitlines():
        name, _, value = line.partition(":")
        facts.setdefault(name.strip().lower(), value.strip())
    features = set((facts.get("flags") or facts.get("features") or "").split())
    model = facts.get("model name") or facts.get("cpu part") or platform.machine()
    cores = sum(1 for line in _read(CPUINFO).splitlines() if line.startswith("processor")) or 1
    family, vendor = _integer(facts.get("cpu family", "")), facts.get("vendor_id", "")
    return Computer(model, cores, _sys_caches(), _vector_bits(features), _nearest(vendor, family, features))


def _vector_bits(features: set[str]) -> int:
    if "avx512f" in features:
        return 512
    if "avx2" in features or "avx" in features:
        return 256
    return 128


def _nearest(vendor: str, family: int, features: set[str]) -> str:
    """By generation where it is known, by vectors where it is not."""
    if vendor == "AuthenticAMD":
        return "zen4" if "avx512f" in features or family > 25 else "zen3"
    if vendor == "GenuineIntel":
        return "sapphire_rapids" if "avx512_bf16" in features or "avx_vnni" in features else "skylake_avx512"
    return "neoverse_v2" if "sve" in features else "cortex_a78"


def _sys_caches() -> tuple[KnownCache, ...]:
    found = []
    for folder in sorted(CACHES.glob("index*")):
        if _read(folder / "type").strip() == "Instruction":
            continue
        size = _read(folder / "size").strip()
        units = {"K": 1024, "M": 1024**2}
        if not size or size[-1] not in units:
            continue
        found.append(
            KnownCache(
                level=_integer(_read(folder / "level")),
                size_bytes=_integer(size[:-1]) * units[size[-1]],
                line_bytes=_integer(_read(folder / "coherency_line_size")) or 64,
                ways=_integer(_read(folder / "ways_of_associativity")) or None,
            )
        )
    return tuple(found)


def _macos() -> Computer:
    line = _sysctl("hw.cachelinesize") or "64"
    first = _sysctl("hw.perflevel0.l1dcachesize") or _sysctl("hw.l1dcachesize")
    second = _sysctl("hw.perflevel0.l2cachesize") or _sysctl("hw.l2cachesize")
    cores = _integer(_sysctl("hw.perflevel0.physicalcpu") or _sysctl("hw.physicalcpu")) or 1
    caches = [KnownCache(n + 1, _integer(size), _integer(line), None) for n, size in enumerate((first, second)) if size]
    arm = platform.machine() == "arm64"
    bits = 128 if arm else 256
    return Computer(
        _sysctl("machdep.cpu.brand_string"), cores, tuple(caches), bits, "apple_m2" if arm else "skylake_avx512"
    )


def _sysctl(name: str) -> str:
    done = subprocess.run(["/usr/sbin/sysctl", "-n", name], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _integer(text: str) -> int:
    return int(text) if text.strip().isdigit() else 0
