"""What `hwsim calibrate` writes about a computer of which all is known: probes answer for it, nothing is measured."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from hwsim.catalog import load_machine
from hwsim.cli.app import main
from hwsim.measure import calibrate, here
from hwsim.measure.calibrate import FAR_BYTES, MOMENTS, NOISY, Calibration, Calibrator, News, machine_file
from hwsim.measure.here import Computer, KnownCache, this_computer
from hwsim.measure.probes import Reading

CYCLE_S = 0.25e-9
KIB, MIB = 1 << 10, 1 << 20
CACHES = (KnownCache(1, 48 * KIB, 64, 12), KnownCache(2, MIB, 64, 16), KnownCache(3, 32 * MIB, 64, 16))
CYCLES = {48 * KIB: 5, MIB: 14, 32 * MIB: 50, FAR_BYTES: 400}
"""How long dependent loads of so many bytes take: memory is 100 ns away."""
BYTES_PER_CYCLE = {48 * KIB: 64.0, MIB: 32.0, 32 * MIB: 16.0, FAR_BYTES: 3.2}
"""What one core draws; of memory that is 12.8 GB/s."""


@dataclass(frozen=True)
class Probe:
    """Answers the same at every moment."""

    seconds: float
    spread: float = 0.01

    def sample(self) -> Reading:
        return Reading(self.seconds, 40, self.spread)


class KnownComputer:
    """Stands in for `hwsim.measure.probes`: each probe answers as this computer would, for what it is given."""

    def __init__(self, l3_seen: int = 32 * MIB, pages: int = 64, l3: int = 50, **spreads: float) -> None:
        self.l3_seen, self.pages, self.spreads = l3_seen, pages, spreads
        self.cycles = {**CYCLES, 32 * MIB: l3}
        self.far: list[Any] = []

    def _probe(self, name: str, cycles: float) -> Probe:
        return Probe(cycles * CYCLE_S, self.spreads.get(name, 0.01))

    def _of(self, table: dict[int, Any], nbytes: int) -> Any:
        if nbytes > self.l3_seen:
            return table[FAR_BYTES]
        return next(value for held, value in table.items() if nbytes <= held)

    def memory(self, nbytes: int) -> Any:
        room = np.broadcast_to(np.uint64(0), nbytes // 8)
        self.far += [room] if nbytes == FAR_BYTES else []
        return room

    def clock(self) -> Probe:
        return self._probe("clock", 1)

    def add_latency(self) -> Probe:
        return self._probe("add", 3.2)

    def mul_latency(self) -> Probe:
        return self._probe("mul", 2.9)

    def fma_latency(self) -> Probe:
        return self._probe("fma", 4)

    def fma_interval(self) -> Probe:
        return self._probe("ports", 0.5)

    def exp_interval(self) -> Probe:
        return self._probe("exp", 2.5)

    def chain(self, room: Any, line: int) -> Probe:
        assert line == 64
        return self._probe("latency" if room.nbytes < FAR_BYTES else "far", self._of(self.cycles, room.nbytes))

    def reading(self, room: Any, streams: bool = False) -> Probe:
        """One stream draws all there is from the second and third cache alone."""
        drawn = self._of(BYTES_PER_CYCLE, room.nbytes)
        if not streams and drawn in (64.0, 3.2):
            drawn /= 2
        return self._probe("alone" if room.nbytes == FAR_BYTES else "bandwidth", 1 / drawn)

    def writing(self, nbytes: int) -> Probe:
        return self._probe("writing", 1 / 24 if nbytes <= 48 * KIB else 1)

    def strided_loads(self, stride: int, lines: int) -> Probe:
        """48 KiB of 12 ways: lines 4 KiB apart share a set, and many more of them than ways come from farther away."""
        return self._probe("refill", 9.5 if stride == 4 * KIB and lines > 10 * 12 else 0.5)

    def page_chain(self, pages: int, line: int) -> Probe:
        return self._probe("paged", 5 if pages <= self.pages else 12)

    def FarJumps(self, room: Any, line: int) -> Probe:  # noqa: N802 - named as what it stands for
        assert room.nbytes == FAR_BYTES and line == 64
        return self._probe("jumps", 40)  # 10 ns a line

    def AllCores(self, shares: Sequence[Any]) -> Probe:  # noqa: N802
        """Four cores or more draw 51.2 GB/s, fewer what each draws alone."""
        assert sum(share.nbytes for share in shares) == FAR_BYTES
        return self._probe("together", 1 / (3.2 * min(4, len(shares))))


def calibrated(
    monkeypatch: pytest.MonkeyPatch,
    known: KnownComputer,
    caches: tuple[KnownCache, ...] = CACHES,
    nearest: str = "zen3",
    bits: int = 256,
) -> Calibrator:
    monkeypatch.setattr(calibrate, "probes", known)
    made = Calibrator(Computer("Known", 8, caches, bits, nearest), load_machine(nearest).spec)
    samples, *told = made.run()
    assert isinstance(samples, int) and told[:samples] == [None] * samples
    assert samples % MOMENTS == 0 and all(isinstance(each, News) for each in told[samples:])
    return made


def written(found: Calibration) -> dict[str, str]:
    """Values by path, without their sources."""
    levels = {f"{level}.{name}": value for level, own in found.levels.items() for name, (value, _) in own.items()}
    return {"clock": found.clock[0], **{path: value for path, (value, _) in found.core.items()}, **levels}


ALL = {
    "clock": "4 GHz", "count": "8", "latency.add": "3", "latency.mul": "3", "latency.fma": "4", "ports.fma": "2",
    "special_interval": "2.5", "tlb": "{entries: 64, page: 4 KiB, miss: 1.8}",
    "l1.size": "48 KiB", "l1.line": "64 B", "l1.ways": "12", "l1.latency": "5 cycles", "l1.bandwidth": "64 B/cycle",
    "l1.write_bandwidth": "24 B/cycle", "l1.set_refill": "9.5 cycles",
    "l2.size": "1024 KiB", "l2.line": "64 B", "l2.ways": "16", "l2.latency": "14 cycles", "l2.bandwidth": "32 B/cycle",
    "l2.mshrs": "20",  # 12.8 GB/s for 100 ns in lines of 64 bytes
    "l3.size": "32768 KiB", "l3.line": "64 B", "l3.ways": "16", "l3.latency": "50 cycles",
    "l3.unit_bandwidth": "16 B/cycle", "l3.bandwidth": "128 B/cycle",  # eight cores
    "l3.strided_misses": "10",  # 100 ns each, one in 10 ns
    "dram.latency": "100 ns", "dram.bandwidth": "51.2 GB/s", "dram.write_bandwidth": "25.6 GB/s",
}  # fmt: skip
"""What is known of the computer, as a machine file says it."""


def test_a_computer_that_is_known_is_found_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And the file is a machine with these numbers, each with its source."""
    made = calibrated(monkeypatch, known := KnownComputer())
    assert made.result.left_out == []
    assert written(made.result) == ALL
    assert len(known.far) == 1, "probes of memory far away share their room"
    file = tmp_path / "known.yaml"
    file.write_text(machine_file(made.result, "known"))
    data = yaml.safe_load(file.read_text())
    assert data["compute"][0]["latency"] == {"add": 3, "mul": 3, "fma": 4} and data["compute"][0]["ports"] == {"fma": 2}
    assert set(data["compute"][0]["source"]) == set(made.result.core)
    assert data["memory"][0]["source"]["latency"].startswith("measured over 12 KiB, median of the fastest eighth of 40")
    assert "over 192 KiB" in data["memory"][1]["source"]["latency"], "four times the first cache"
    assert "over 512 KiB" in data["memory"][1]["source"]["bandwidth"], "half of the second"
    assert "over 2,048 KiB" in data["memory"][2]["source"]["latency"], "of a shared cache no more than 2 MiB"
    assert "12.8 GB/s of one core times" in data["memory"][1]["source"]["mshrs"]
    assert "10 ns a line" in data["memory"][2]["source"]["strided_misses"]
    machine = load_machine(file).spec
    assert machine.name == "known" and machine.clocks[0].frequency == 4_000_000_000
    assert [cache.size for cache in machine.caches] == [48 * KIB, MIB, 32 * MIB]


def test_vectors_are_written_where_the_nearest_machine_has_others(monkeypatch: pytest.MonkeyPatch) -> None:
    assert written(calibrated(monkeypatch, KnownComputer(), bits=128).result)["simd"] == "{bits: 128}"
    skylake = written(calibrated(monkeypatch, KnownComputer(), nearest="skylake_avx512", bits=512).result)
    assert not {"simd", "dram.write_bandwidth"} & set(skylake), "its file has no bandwidth of writing either"


LEFT = {
    "add": {"latency.add"}, "mul": {"latency.mul"}, "fma": {"latency.fma"}, "ports": {"ports.fma"},
    "exp": {"special_interval"}, "writing": {"l1.write_bandwidth"}, "refill": {"l1.set_refill"}, "paged": {"tlb"},
    "latency": {"l1.latency", "l2.latency", "l3.latency"},
    "bandwidth": {"l1.bandwidth", "l1.write_bandwidth", "l2.bandwidth", "l3.bandwidth", "l3.unit_bandwidth"},
    "far": {"dram.latency", "l2.mshrs", "l3.strided_misses"}, "alone": {"l2.mshrs", "l3.strided_misses"},
    "jumps": {"l3.strided_misses"}, "together": {"dram.bandwidth", "dram.write_bandwidth"},
}  # fmt: skip
"""What a probe that is too noisy leaves to the nearest machine, with what is found from it."""


@pytest.mark.parametrize("probe", LEFT)
def test_what_moves_by_more_than_a_quarter_is_left_out_and_said(monkeypatch: pytest.MonkeyPatch, probe: str) -> None:
    clear = calibrated(monkeypatch, KnownComputer(**{probe: NOISY})).result
    assert (written(clear), clear.left_out) == (ALL, [])
    noisy = calibrated(monkeypatch, KnownComputer(**{probe: NOISY + 0.01})).result
    assert written(noisy) == {path: value for path, value in ALL.items() if path not in LEFT[probe]}
    named = {text.partition(":")[0].removeprefix("core.") for text in noisy.left_out}
    assert named and named <= LEFT[probe]
    assert all(line in machine_file(noisy, "noisy") for line in (f"# Left out: {text}" for text in noisy.left_out))


@pytest.mark.parametrize(
    ("seen", "size"), [(32, "32768 KiB"), (16, "32768 KiB"), (15, "8192 KiB"), (4, "4096 KiB"), (2, "2048 KiB")]
)
def test_of_a_cache_that_others_use_the_part_counts_that_holds_lines(
    monkeypatch: pytest.MonkeyPatch, seen: int, size: str
) -> None:
    """A sixteenth, an eighth, a quarter and a half of 32 MiB are looked at."""
    found = written(calibrated(monkeypatch, KnownComputer(l3_seen=seen * MIB)).result)
    assert found == {**ALL, "l3.size": size}


def test_a_cache_that_others_fill_is_left_to_the_nearest_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    result = calibrated(monkeypatch, KnownComputer(l3_seen=MIB)).result
    assert not {"l3.size", "l3.latency"} & set(written(result))
    assert [text.partition(":")[0] for text in result.left_out] == ["l3.size", "l3.latency"]
    assert "nothing of its 32 MiB was seen" in result.left_out[0] and "left to zen3" in result.left_out[0]
    assert "2048 KiB came from memory" in result.left_out[1]


@pytest.mark.parametrize(("cycles", "left"), [(199, []), (201, ["l3.size", "l3.latency"])])
def test_a_cache_is_seen_where_loads_take_less_than_half_of_what_memory_takes(
    monkeypatch: pytest.MonkeyPatch, cycles: int, left: list[str]
) -> None:
    result = calibrated(monkeypatch, KnownComputer(l3=cycles)).result
    assert [text.partition(":")[0] for text in result.left_out] == left
    assert written(result).get("l3.latency") == (None if left else f"{cycles} cycles")


@pytest.mark.parametrize(("pages", "entries"), [(16, 16), (31, 16), (128, 128), (191, 128), (192, None)])
def test_pages_are_known_up_to_the_last_number_before_loads_get_slower(
    monkeypatch: pytest.MonkeyPatch, pages: int, entries: int | None
) -> None:
    result = calibrated(monkeypatch, KnownComputer(pages=pages)).result
    told = f"{{entries: {entries}, page: 4 KiB, miss: 1.8}}" if entries else None
    assert written(result).get("tlb") == told
    assert bool(result.left_out) == (entries is None)
    assert entries is None or "7 cycles more beyond" in result.core["tlb"][1]


@pytest.mark.parametrize("levels", [(), (1,), (2,), (1, 2), (1, 3), (2, 3)])
def test_a_system_that_does_not_tell_of_some_caches_is_calibrated_without_them(
    monkeypatch: pytest.MonkeyPatch, levels: tuple[int, ...]
) -> None:
    """Lines that are in flight belong to the second cache, or to the last that is known behind the first."""
    caches = tuple(cache for cache in CACHES if cache.level in levels)
    found = written(calibrated(monkeypatch, KnownComputer(), caches).result)
    names = {f"l{level}" for level in levels}
    assert {path.partition(".")[0] for path in found if path.startswith("l") and path[1].isdigit()} == names
    assert {path for path in found if path.endswith(("mshrs", "strided_misses"))} == {
        f"{level}.{name}"
        for level, name in (("l2" if 2 in levels else "l3", "mshrs"), (f"l{max(levels, default=0)}", "strided_misses"))
        if level in names - {"l1"}
    }
    for path, value in ALL.items():
        if path in found:
            assert found[path] == value, path


def test_ways_that_the_system_does_not_tell_are_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    caches = tuple(KnownCache(cache.level, cache.size_bytes, cache.line_bytes, None) for cache in CACHES)
    found = written(calibrated(monkeypatch, KnownComputer(), caches).result)
    assert found == {path: value for path, value in ALL.items() if "ways" not in path and "set_refill" not in path}


def test_numbers_that_come_out_below_one_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine file knows no latency, no ports, no interval and no lines in flight of less."""
    known = KnownComputer()
    for name in ("add_latency", "exp_interval"):
        monkeypatch.setattr(known, name, lambda: Probe(0.3 * CYCLE_S))
    monkeypatch.setattr(known, "fma_interval", lambda: Probe(3 * CYCLE_S))
    monkeypatch.setattr(known, "cycles", {**CYCLES, 48 * KIB: 0.3})
    monkeypatch.setattr(known, "FarJumps", lambda room, line: Probe(500 * CYCLE_S))  # longer than one load takes
    monkeypatch.setitem(BYTES_PER_CYCLE, FAR_BYTES, 0.01)
    found = written(calibrated(monkeypatch, known).result)
    assert (found["latency.add"], found["special_interval"], found["ports.fma"]) == ("1", "1", "1")
    assert (found["l1.latency"], found["l3.strided_misses"], found["l2.mshrs"]) == ("1 cycles", "1", "1")


@pytest.mark.parametrize(("cost", "seen"), [(2.9, False), (3.1, True)])
def test_pages_are_unknown_where_loads_take_three_cycles_more(
    monkeypatch: pytest.MonkeyPatch, cost: float, seen: bool
) -> None:
    known = KnownComputer()
    monkeypatch.setattr(known, "page_chain", lambda pages, line: Probe((5 + (cost if pages > 64 else 0)) * CYCLE_S))
    assert ("tlb" in written(calibrated(monkeypatch, known).result)) == seen


def test_every_probe_says_what_it_found_or_why_it_found_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """All but what the system tells; of pages no limit is seen."""

    def said(known: KnownComputer) -> dict[str, str]:
        monkeypatch.setattr(calibrate, "probes", known)
        computer = Computer("Known", 8, CACHES, 256, "zen3")
        told = Calibrator(computer, load_machine("zen3").spec).run()
        return {each.name: each.text for each in told if isinstance(each, News)}

    noisy = said(KnownComputer(**dict.fromkeys(LEFT, 0.3)))
    assert set(noisy) == set(said(KnownComputer())) > {"clock", "caches", "pages", "crowded sets"}
    assert noisy.pop("pages") == "no limit seen"
    assert {text for name, text in noisy.items() if name not in ("clock", "caches")} == {"too noisy, spread 30%"}
    assert said(KnownComputer(l3_seen=MIB))["latency of l3"] == "not seen: 400 cycles are nearly those of memory"


SHOWN = {
    "clock": "4.00 GHz", "caches": 'A "known" one, 8 cores, l1 48 KiB, l2 1024 KiB, l3 32768 KiB',
    "latency of add": "3.20", "latency of mul": "2.90", "ports": "2.00", "exponentials": "2.5 cycles each in a loop",
    "latency of l2": "14.0 cycles", "bandwidth of l3": "16.0 B/cycle",
    "crowded sets": "9.5 cycles between misses of one set", "pages": "64 pages, then 7 cycles more",
    "latency of dram": "100 ns", "bandwidth of dram": "51.2 GB/s of 8 cores",
}  # fmt: skip


def test_the_command_writes_the_file_and_says_what_it_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(calibrate, "probes", KnownComputer(jumps=0.4))
    monkeypatch.setattr(here, "this_computer", lambda: Computer('A "known" one', 8, CACHES, 256, "zen3"))
    assert main(["calibrate", "mine.yaml"]) == 0
    shown = capsys.readouterr().out
    assert "left out: l3.strided_misses: spread 40%, too noisy" in shown
    found = {line[:24].strip(): line[24:].strip() for line in shown.splitlines()}
    for name, text in SHOWN.items():
        assert found[name] == text + (", spread 1%" if name not in ("caches", "pages") else ""), name
    assert load_machine(tmp_path / "mine.yaml").spec.description.startswith("A 'known' one, 8 cores")
    assert main(["calibrate", "mine.yaml", "--json", "-"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["nearest"], told["clock_hz"], told["core"]["latency.fma"][0]) == ("zen3", pytest.approx(4e9), "4")
    assert main(["calibrate", "Mine.yaml"]) == 2 and main(["calibrate", "mine.txt"]) == 2


# What the system tells ------------------------------------------------------------------------------------------------


def computer_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *lines: str, cores: int = 4) -> Computer:
    """The computer whose /proc/cpuinfo says this of every processor; its processors tell of no caches."""
    file = tmp_path / "cpuinfo"
    own = "".join(f"{line}\n" for line in lines)
    file.write_text("".join(f"processor\t: {number}\n{own}\n" for number in range(cores)))
    monkeypatch.setattr(here.platform, "system", lambda: "Linux")
    monkeypatch.setattr(here, "CPUINFO", file)
    monkeypatch.setattr(here, "CACHES", tmp_path / "none")
    return this_computer()


@pytest.mark.parametrize(
    ("vendor", "family", "flags", "bits", "nearest"),
    [
        ("AuthenticAMD", 23, "sse2 avx avx2", 256, "zen3"), ("AuthenticAMD", 25, "avx avx2 fma", 256, "zen3"),
        ("AuthenticAMD", 25, "avx2 avx512f avx512_bf16", 512, "zen4"), ("AuthenticAMD", 26, "avx2", 256, "zen4"),
        ("GenuineIntel", 6, "avx2 avx512f", 512, "skylake_avx512"), ("GenuineIntel", 6, "avx", 256, "skylake_avx512"),
        ("GenuineIntel", 6, "avx2 avx512f avx512_bf16", 512, "sapphire_rapids"),
        ("GenuineIntel", 6, "avx2 avx_vnni", 256, "sapphire_rapids"),
        ("GenuineIntel", 6, "sse2", 128, "skylake_avx512"),
    ],
)  # fmt: skip
def test_a_processor_is_nearest_to_one_of_its_maker_with_its_vectors(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, vendor: str, family: int, flags: str, bits: int, nearest: str
) -> None:
    told = (f"vendor_id\t: {vendor}", f"cpu family\t: {family}", "model\t\t: 17", "model name\t: Some CPU: 3 GHz")
    found = computer_of(monkeypatch, tmp_path, *told, f"flags\t\t: fpu {flags}")
    assert found == Computer("Some CPU: 3 GHz", 4, (), bits, nearest)
    assert load_machine(nearest).spec.kind == "cpu"


def test_a_processor_of_arm_is_known_by_its_features(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    part = "CPU part\t: 0xd4f"
    found = computer_of(monkeypatch, tmp_path, "Features\t: fp asimd sve sve2", part, cores=2)
    assert found == Computer("0xd4f", 2, (), 128, "neoverse_v2")
    assert computer_of(monkeypatch, tmp_path, "Features\t: fp asimd", part).nearest == "cortex_a78"


def test_a_system_that_says_nothing_has_one_core_of_its_architecture(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(here.platform, "machine", lambda: "riscv64")
    assert computer_of(monkeypatch, tmp_path, cores=0) == Computer("riscv64", 1, (), 128, "cortex_a78")


def test_a_mac_is_asked_where_the_system_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Computer("Apple", 4, (), 128, "apple_m2")
    monkeypatch.setattr(here.platform, "system", lambda: "Darwin")
    monkeypatch.setattr(here, "_macos", lambda: made)
    assert this_computer() is made


def test_a_system_of_another_kind_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for system, said in (("Windows", "not on Windows"), ("", "not on this system")):
        monkeypatch.setattr(here.platform, "system", lambda system=system: system)
        with pytest.raises(here.InputError, match=said):
            this_computer()
