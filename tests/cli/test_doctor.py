"""The doctor's findings, one kind at a time, and the whole of it on a tiny model."""

from __future__ import annotations

import importlib.util
import json
import socket
from pathlib import Path
from types import ModuleType

import pytest

from personae.cli import cpu, doctor, ports
from personae.cli import main as cli
from personae.cli.doctor import Build
from personae.service.engine_host import EngineDied
from personae.types import MixMode, ModelCard
from tests.tiny import TinyModel, write_model

OLD = frozenset({"avx", "f16c"})
PLAIN = frozenset({"avx", "avx2", "fma", "f16c", "bmi2"})
WIDE = PLAIN | {"avx512f", "avx512cd", "avx512vl", "avx512dq", "avx512bw", "avx512_vnni", "avx512_bf16", "avx_vnni", "amx_int8"}
BUILD = "CPU : AVX = 1 | AVX2 = 1 | F16C = 1 | FMA = 1 | BMI2 = 1 | AVX512 = 0 | REPACK = 1 |"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    pytest.importorskip("llama_cpp")
    return write_model(tmp_path_factory.mktemp("doctor") / "tiny.gguf", "llama")


def build_flags_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_flags", Path(__file__).parents[2] / "tools" / "build_flags.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("flags", [frozenset(), OLD, PLAIN, WIDE, WIDE - {"avx512bw"}])
def test_advice_is_what_make_builds_with(flags: frozenset[str]) -> None:
    assert cpu.cmake_args(flags) == " ".join(build_flags_tool().build_flags(set(flags)))


def test_build_without_what_the_cpu_has_needs_attention() -> None:
    (version, build) = doctor.build_findings(Build("1.0", "1.0", BUILD), WIDE)
    assert version.is_well
    assert not build.is_well
    assert "AVX512, AVX512_VNNI" in build.text
    assert "-DGGML_AVX512=ON" in build.remedy


def test_build_that_uses_the_cpu_is_well() -> None:
    assert all(finding.is_well for finding in doctor.build_findings(Build("1.0", "1.0", BUILD), PLAIN))


def test_amx_in_the_build_is_a_trap_that_is_named() -> None:
    *_, build = doctor.build_findings(Build("1.0", "1.0", f"{BUILD} AMX_INT8 = 1 |"), WIDE)
    assert not build.is_well
    assert "AMX" in build.text


def test_untested_version_names_the_tested_one() -> None:
    version, _ = doctor.build_findings(Build("2.0", "1.0", BUILD), PLAIN)
    assert not version.is_well
    assert "llama-cpp-python==1.0" in version.remedy


def test_missing_and_dying_builds_are_findings() -> None:
    (missing,) = doctor.build_findings(Build(), PLAIN)
    (dying,) = doctor.build_findings(Build("1.0", fault="it ended with code -4"), PLAIN)
    assert "not installed" in missing.text
    assert "code -4" in dying.text
    assert not missing.is_well
    assert not dying.is_well


def test_port_is_free_or_somebodys(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        monkeypatch.setattr(doctor, "_service_at", lambda port: "")
        taken = doctor.port_finding(port)
        assert not taken.is_well
        assert f"{port} is taken" in taken.text
        if Path("/proc/net/tcp").exists():
            assert "process" in ports.holder(port)
        monkeypatch.setattr(doctor, "_service_at", lambda port: "tiny.gguf")
        assert doctor.port_finding(port).is_well
    assert doctor.port_finding(port).is_well


def test_pack_that_cannot_be_used_needs_attention(tmp_path: Path) -> None:
    (tmp_path / "nobody").mkdir()
    (tmp_path / "nobody" / "character.toml").write_text('name = "Nobody"\n')
    count, *problems = doctor.pack_findings(tmp_path, is_asked_for=True)
    assert count.is_well
    assert any(not problem.is_well and "nobody" in problem.text and problem.remedy for problem in problems)


def test_folder_of_packs_must_be_there_when_it_was_named(tmp_path: Path) -> None:
    assert [finding.is_well for finding in doctor.pack_findings(tmp_path / "no", is_asked_for=True)] == [False]
    assert [finding.is_well for finding in doctor.pack_findings(tmp_path / "no", is_asked_for=False)] == [True]


def test_waiting_threads_that_spin_for_ever_need_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    assert doctor.waiting_finding().is_well
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    assert not doctor.waiting_finding().is_well


def test_grouped_mode_needs_attention_and_says_why() -> None:
    card = ModelCard("m.gguf", "llama", "", 1, 1, 64, 2, MixMode.GROUPED, "the self-check failed")
    *_, engine = doctor.engine_findings(card)
    assert not engine.is_well
    assert "the self-check failed" in engine.text


def test_faster_setup_is_advised_on_the_threads_in_use() -> None:
    speeds = pytest.importorskip("personae.cli.bench.speeds")
    now, better, more = (speeds.Setup(*fields) for fields in (("as-is", False, 1), ("q4_0", False, 1), ("q4_0", True, 2)))
    advice = doctor.speed_finding({now: 100.0, better: 60.0, more: 40.0}, now)
    assert "60 ms on as many threads" in advice.remedy
    assert "40 ms" in advice.text
    assert doctor.speed_finding({now: 100.0, better: 95.0}, now).remedy == ""


def test_engine_that_cannot_start_is_a_finding(tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF\x03\x00\x00\x00")
    started = doctor.start_engine(doctor.EngineSettings(model=str(broken)))
    assert isinstance(started, EngineDied)
    assert started.code == "model_unreadable"


def test_whole_examination_is_one_json_object(model: TinyModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.main(["doctor", "--quick", "--json", "--model", str(model.path), "--characters", str(tmp_path), "--port", "0"])
    result = json.loads(capsys.readouterr().out)
    assert code == (0 if result["is_well"] else 1)
    about = {finding["about"] for finding in result["findings"]}
    assert {"versions", "llama.cpp", "mixer", "cores", "waiting", "port", "packs", "model", "engine"} <= about
    (engine,) = [finding for finding in result["findings"] if finding["about"] == "engine"]
    assert "mixed mode" in engine["text"]


def test_examination_reads_as_text_and_ends_with_1_when_something_is_wrong(
    model: TinyModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = cli.main(["doctor", "--quick", "--model", str(tmp_path / "none.gguf"), "--port", "0"])
    shown = capsys.readouterr().out
    assert code == 1
    assert "! model" in shown
    assert "Something needs attention" in shown
