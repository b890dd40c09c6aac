"""Numbers that no machine has and no computer can count to: refused, with the field and the reason."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from command_line import hwsim, hwsim_process

from hwsim.api import run
from hwsim.errors import InputError
from hwsim.result import RunResult

DIGITS = "9" * 400

SETTINGS = {
    "clock.core.frequency=1e60 GHz": "is not from 1 kHz to 1 THz: no clock of a machine is slower or faster",
    "clock.core.frequency=1 Hz": "is not from 1 kHz to 1 THz",
    "clock.core.frequency=0 GHz": "must be a whole, positive number of Hz",
    "clock.core.frequency=inf GHz": "is not a frequency",
    f"clock.core.frequency={DIGITS} GHz": "has 400 digits",
    f"dram.latency={DIGITS} ns": "has 400 digits",
    "dram.latency=1e30 s": "is not from 1 fs to 1 s",
    "dram.latency=inf": "is not a latency",
    "dram.bandwidth=1e-90 B/s": "is not from 1 kB/s to 1000000 TB/s",
    "dram.timing.trefi=0 us": "dram.timing.trefi: 0 ns between two refreshes leaves no time",
    "dram.timing.trefi=1 ns": "leaves no time",
    "dram.channels=99999999999": "must be at most 65,536, found 99,999,999,999: no memory has as many",
    "dram.banks=65536": "",
    "core.count=4097": "must be at most 4,096, found 4,097: each of them is simulated by itself",
    f"core.count={DIGITS}": "must be a whole number of at most 18 digits",
    "core.issue_width=.inf": "must be a whole number",
    "l2.size=1048576 TiB": "can be simulated, or inf for no limit",
    "energy.actions.l1.read.energy=1e30 J": "is not from 1e-9 pJ to 1 J",
    "energy.node=1e-9 nm": "is not from 0.1 nm to 100000 nm",
}


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda text: text[:40])
def test_a_number_out_of_range_is_refused_with_the_reason(setting: str) -> None:
    outcome = hwsim("show", "course_cpu", "--set", setting)
    if not SETTINGS[setting]:
        assert outcome.code == 0, outcome.err
        return
    assert outcome.code == 2, outcome
    assert SETTINGS[setting] in outcome.err
    assert len(outcome.err) < 700, "a message shows no number of hundreds of digits"


def test_the_largest_count_is_allowed_and_one_more_is_not() -> None:
    assert hwsim("show", "course_cpu", "--set", "core.count=4096").code == 0
    assert hwsim("show", "course_cpu", "--set", "core.count=4097").code == 2


GPU = {
    "sm.lanes.fp32=.inf": "sm.lanes.fp32: must be a finite number, found inf",
    "sm.lanes.fp32=1e9": "no unit does as many in a cycle",
    "sm.accumulate.fp16=banana": "sm.accumulate.fp16: 'banana' is not one of the number formats",
    "sm.library.split_k=[2, 4]": "sm.library.split_k: must have 1 among its numbers",
    "sm.tensor.banana=4": "'banana' is not one of the number formats",
    "sm.power_limit=10 W": "a limit of 10 W leaves nothing to work with: 66 W flow when idle",
    "sm.power_limit=66 W": "leaves nothing to work with",
}


@pytest.mark.parametrize("setting", GPU)
def test_a_gpu_that_cannot_be_is_refused(setting: str) -> None:
    """`accumulate: banana` was accepted, and a100_40 drew 259 W at a limit of 10 W."""
    outcome = hwsim("run", "a100_40", "matmul", "n=64", "--no-math", "--set", setting)
    assert outcome.code == 2, outcome
    assert GPU[setting] in outcome.err


@pytest.mark.parametrize("limit_w", [80, 100, 200])
def test_a_power_limit_above_idle_is_obeyed(limit_w: int) -> None:
    result = run("a100_40", "matmul", n=4096, precision="fp16", math=False, set={"sm.power_limit": f"{limit_w} W"})
    assert result.power_w is not None and result.power_w <= limit_w * 1.001


SIZES = {
    "n=99999999999999999999999": "n=99999999999999999999999: must be a whole number",
    "n=1e9": "the tensors of matmul_tiled need about",
    "n=15e-1": "must be a whole number",
    "n=-1": "n=-1: must be a whole number of at least 1",
    "n=.inf": "n=inf: must be a whole number",
    "tile=0": "tile=0",
    "seed=99999999999999999999": "seed=",
    "accumulate=e2m1": "numbers of this format end below 4, and sums of products pass that",
    "accumulate=banana": "'banana' is not one of",
}


@pytest.mark.parametrize("word", SIZES)
def test_a_parameter_out_of_range_is_refused(word: str) -> None:
    outcome = hwsim("run", "course_cpu", "matmul_tiled", word)
    assert outcome.code == 2, outcome
    assert SIZES[word] in outcome.err


def test_sums_of_int8_need_more_than_8_bits() -> None:
    """It answered 'WRONG ANSWER'; so did `accumulate: e2m1`."""
    outcome = hwsim("run", "course_cpu", "matmul_tiled", "n=64", "tile=16", "precision=int8", "accumulate=int8")
    assert outcome.code == 2 and "int8 cannot keep sums of products" in outcome.err
    small = ("n=64", "tile=16", "precision=int8", "scale=none", "accumulate=int16")  # whole numbers from -7 to 7
    assert hwsim("run", "course_cpu", "matmul_tiled", *small).code == 0


@pytest.mark.parametrize("word", ["padding=100000000000", "padding=999999999999999", "ci=99999999999"])
def test_a_convolution_beyond_all_tensors_is_refused(word: str) -> None:
    outcome = hwsim("run", "course_cpu", "conv2d", word, "--no-math")
    assert outcome.code == 2, outcome
    assert word.partition("=")[0] in outcome.err


def test_a_range_that_grows_too_slowly_is_refused_with_its_count() -> None:
    outcome = hwsim("sweep", "course_cpu", "matmul_tiled", "tile=1..1000000:x1.000001")
    assert outcome.code == 2
    assert "about 13,815,518 values, and a range that grows has at most 1,000" in outcome.err


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_an_energy_table_between_itself_is_refused(folder: Path) -> None:
    tables = folder / "machines" / "energy"
    tables.mkdir(parents=True)
    head = "format: 1\nname: {}\ndescription: d\nnode: 45 nm\nbetween: [{}, {}]\n"
    (tables / "a.yaml").write_text(head.format("a", "b", "a"))
    (tables / "b.yaml").write_text(head.format("b", "a", "b"))
    machine = "format: 1\nname: m\nextends: course_cpu\nenergy: {node: 45 nm, table: a}\n"
    (folder / "m.yaml").write_text(machine)
    outcome = hwsim("show", "m.yaml")
    assert outcome.code == 2
    assert "goes round in a circle" in outcome.err and "a → " in outcome.err


def test_a_chain_of_1500_files_is_refused(folder: Path) -> None:
    for number in range(1500):
        parent = f"m{number + 1}.yaml" if number < 1499 else "course_cpu"
        (folder / f"m{number}.yaml").write_text(f"format: 1\nname: m{number}\nextends: {parent}\n")
    outcome = hwsim("check", "m0.yaml")
    assert outcome.code == 2
    assert "files extend each other; at most 32" in outcome.err
    assert hwsim("check", "m1470.yaml").code == 0


def test_extends_that_names_a_folder_or_a_stranger_s_home_is_refused(folder: Path) -> None:
    (folder / "sub").mkdir()
    for parent in ("sub/", "./", "..", "/", "~nosuchuser/x.yaml", '"a\\0b.yaml"', "x" * 5000):
        (folder / "m.yaml").write_text(f"format: 1\nname: m\nextends: {parent}\n")
        outcome = hwsim("check", "m.yaml")
        assert outcome.code == 2, (parent, outcome)
        assert "m.yaml:3: extends: " in outcome.err, outcome.err
    assert hwsim("show", "~nosuchuser/x.yaml").code == 2
    assert hwsim("replay", "course_cpu", "~nosuchuser/x.din").code == 2
    assert hwsim("run", "course_cpu", "add", "n=16", "--json", "~nosuchuser/x.json").code == 2


def test_pipes_devices_folders_and_locked_files_are_told_apart(folder: Path) -> None:
    os.mkfifo(folder / "pipe.yaml")
    (folder / "sub").mkdir()
    (folder / "locked.json").write_text("{}")
    (folder / "locked.json").chmod(0)
    for name, says in {
        "pipe.yaml": "a pipe or a device",
        "/dev/zero": "a pipe or a device",
        "./sub": "a folder",
    }.items():
        for command in ("check", "explain", "report"):
            outcome = hwsim(command, name)
            assert outcome.code == 2 and says in outcome.err, (command, name, outcome)
    if os.geteuid():
        assert "Permission denied" in hwsim("explain", "locked.json").err
    assert hwsim("replay", "course_cpu", "/dev/zero").code == 2


def test_a_run_that_does_not_fit_the_memory_is_refused_before_it_allocates(folder: Path) -> None:
    """Under a limit of memory it was killed without a word."""
    import resource

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))

    words = ("course_cpu", "copy", "n=100000000")
    done = hwsim_process("run", *words, preexec_fn=limit)
    assert done.returncode == 2, done.stderr
    assert "need about 4.8 GB of memory" in done.stderr and "--no-math" in done.stderr
    swept = hwsim_process(
        "sweep", "course_cpu", "copy", "n=100000000,64", "--out", "s.db", "--jobs", "1", preexec_fn=limit
    )
    assert "1 failed" in swept.stdout + swept.stderr, swept
    points = json.loads(hwsim("export", "s.db", "--format", "json").out)
    assert [point["status"] for point in points] == ["lost", "done"], "tried again where there is more memory"


def test_a_mistake_of_ours_is_one_paragraph_that_asks_for_a_report(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*given: object) -> None:
        raise KeyError("planted")

    monkeypatch.setattr("hwsim.cli.show._print_machine", broken)
    outcome = hwsim("show", "course_cpu")
    assert outcome.code == 1
    assert "this is a mistake in hwsim" in outcome.err and "Please report it" in outcome.err
    assert "KeyError" in outcome.err and "planted" in outcome.err and "Traceback" not in outcome.err
    assert outcome.err.count("\n") == 1
    with pytest.raises(KeyError, match="planted"):
        hwsim("show", "course_cpu", "--debug")


@pytest.fixture(scope="module")
def whole() -> dict[str, object]:
    return run("course_cpu", "matmul_tiled", n=16, tile=4).to_dict()


def test_a_whole_result_is_read_back(whole: dict[str, object]) -> None:
    assert RunResult.from_json(json.dumps(whole)).to_dict() == json.loads(json.dumps(whole))


DAMAGE = {
    "a negative time": {"time_s": -1.0},
    "no time": {"time_s": 0.0},
    "text for a number": {"cycles": "many"},
    "half a cycle": {"cycles": 1.5},
    "energy that is not its parts": {"energy_j": 1e9},
    "power that is not energy over time": {"power_w": 3.0},
    "another machine": {"machine": "zen3"},
    "a list for a group": {"work": []},
    "a field of no result": {"banana": 1},
    "warnings that are numbers": {"warnings": [1]},
    "no levels": {"memory": {"l1": {"reads": 1}}},
    "cores that neither work nor wait": {"attribution": {"core[0]": {"idle": {}}}},
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_result_is_refused(whole: dict[str, object], name: str) -> None:
    """Of 488 damaged results 133 were tracebacks and 258 were explained."""
    with pytest.raises(InputError, match="as this version writes it"):
        RunResult.from_json(json.dumps({**whole, **DAMAGE[name]}))


def test_every_field_of_a_result_is_needed(whole: dict[str, object]) -> None:
    for name in whole:
        with pytest.raises(InputError, match="missing"):
            RunResult.from_json(json.dumps({key: value for key, value in whole.items() if key != name}))


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
def test_no_number_is_no_number(whole: dict[str, object], word: str) -> None:
    text = json.dumps({**whole, "time_s": 12345.5}).replace("12345.5", word)
    with pytest.raises(InputError, match="is no number"):
        RunResult.from_json(text)
