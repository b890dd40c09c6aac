"""The wheel holds everything that `hwsim` needs, and works from any folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def test_machines_workloads_and_reference_data_are_inside(unpacked: Path) -> None:
    for kind in ("machines", "workloads", "models", "systems", "engines", "lessons"):
        shipped = {path.name for path in (unpacked / "hwsim" / "data" / kind).glob("*.yaml")}
        assert shipped == {path.name for path in (ROOT / kind).glob("*.yaml")}
    tables = {path.name for path in (unpacked / "hwsim" / "data" / "machines" / "energy").iterdir()}
    assert tables == {path.name for path in (ROOT / "machines" / "energy").iterdir()} != set()
    data = {path.name for path in (ROOT / "hwsim" / "validation" / "data").iterdir()}
    assert {path.name for path in (unpacked / "hwsim" / "validation" / "data").iterdir()} == data


def test_the_licence_and_nothing_of_the_tests_is_inside(unpacked: Path) -> None:
    assert list(unpacked.glob("hwsim-*.dist-info/licenses/LICENSE"))
    assert {path.name.split("-")[0] for path in unpacked.iterdir()} == {"hwsim"}


def test_the_installed_program_finds_its_machines_from_any_folder(unpacked: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(unpacked)}
    command = [sys.executable, "-m", "hwsim", "list", "--json"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    listed = json.loads(done.stdout)
    assert {entry["name"] for entry in listed["machines"]} == {path.stem for path in (ROOT / "machines").glob("*.yaml")}
    assert all(Path(entry["path"]).is_relative_to(unpacked) for entry in listed["workloads"])


def test_the_source_archive_builds_the_same_wheel(unpacked: Path, tmp_path: Path) -> None:
    (archive,) = SdistBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path / "source", filter="data")
    (source,) = (tmp_path / "source").iterdir()
    (wheel,) = WheelBuilder(str(source)).build(directory=str(tmp_path / "wheel"), versions=["standard"])
    with zipfile.ZipFile(wheel) as packed_wheel:
        names = {name for name in packed_wheel.namelist() if not name.endswith("/RECORD")}
    assert names == {str(path.relative_to(unpacked)) for path in unpacked.rglob("*") if path.is_file()} - {
        str(path.relative_to(unpacked)) for path in unpacked.rglob("RECORD")
    }


def test_the_installed_program_runs_from_another_folder(unpacked: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(unpacked)}
    command = [sys.executable, "-m", "hwsim", "run", "course_cpu", "matmul_tiled", "n=16", "tile=4", "--json", "-"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=True
    )
    assert json.loads(done.stdout)["verified"] is True
