"""Every benchmark runs on a tiny model and prints one JSON object with the names it promises. The numbers themselves are not judged."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("llama_cpp")

from personae.cli import main as cli
from personae.cli.bench import figures, report
from personae.engine.llama import formats
from personae.errors import AskedWrong, WorldFailed
from personae.packs.gguf import read_header
from tests.tiny import TinyModel, write_adapter, write_model

Bench = Callable[..., dict[str, Any]]

SMALL = ("--npcs", "2", "--rank", "2")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return write_model(tmp_path_factory.mktemp("bench models") / "tiny.gguf", "llama-tied")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def bench(model: TinyModel, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Bench:
    """Run `personae bench NAME --model tiny --json` in this process and read what it prints."""
    for name in ("GOMP_SPINCOUNT", "OMP_NUM_THREADS", "PYTHONUTF8"):  # bench sets them; this takes them back afterwards
        monkeypatch.setenv(name, os.environ.get(name, "1"))
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(name, str(cache))

    def call(name: str, *options: str) -> dict[str, Any]:
        assert cli.main(["bench", name, "--model", str(model.path), "--json", *options]) == 0
        return dict(json.loads(capsys.readouterr().out))

    return call


@pytest.fixture
def packs(tmp_path: Path, model: TinyModel) -> Path:
    """One character with an adapter and lines of its own."""
    pack = tmp_path / "characters" / "guard"
    pack.mkdir(parents=True)
    write_adapter(pack / "adapter.gguf", model)
    (pack / "character.toml").write_text('name = "Guard"\npersona = "You are a guard."\n[adapter]\nfile = "adapter.gguf"\n')
    lines = [{"user": "Who is there?", "reply": "It is I."}, {"user": "Halt!", "reply": "No, you halt."}]
    (pack / "lines.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return pack.parent


def test_mix_compares_plain_mixed_and_grouped(bench: Bench, model: TinyModel) -> None:
    result = bench("mix", *SMALL, "--steps", "2", "--grouped-steps", "1", "--threads", "1")
    times = {"plain_ms", "mixed_ms", "grouped_ms", "mixed_over_plain", "mixed_over_grouped"}
    assert all(result[name] > 0 for name in times)
    setting = {name: result[name] for name in ("rank", "npcs", "model", "threads", "format", "flash_attention")}
    assert setting == {"rank": 2, "npcs": 2, "model": model.path.name, "threads": 1, "format": "as-is", "flash_attention": False}
    assert result["kernels"]


def test_mix_makes_a_table_of_ranks_and_npcs(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("personae.cli.bench.mix.TABLE_NPCS", (1, 2))
    monkeypatch.setattr("personae.cli.bench.mix.TABLE_RANKS", (2,))
    result = bench("mix", "--table", "--steps", "1", "--grouped-steps", "1", "--flash")
    assert len(result["table"].splitlines()) == 2 + len(result["rows"])
    assert [(row["npcs"], row["rank"]) for row in result["rows"]] == [(1, 2), (2, 2)]


def test_mix_converts_the_base_when_asked(bench: Bench) -> None:
    assert bench("mix", *SMALL, "--steps", "1", "--grouped-steps", "1", "--format", "q8_0")["model"].endswith(".q8_0.gguf")


def test_parity_is_rounding_and_rows_do_not_touch_each_other(bench: Bench) -> None:
    result = bench("parity", "--steps", "2", "--prompt", "4")
    assert result["max_rel_logit"] < 5e-3
    assert result["rows_independent"] is True
    assert result["rows"] == 2 * len(result["ranks"])


def test_service_is_compared_with_the_engine_alone(bench: Bench) -> None:
    result = bench("service", *SMALL, "--rounds", "1", "--tokens", "4")
    assert all(result[name] > 0 for name in ("service_over_engine", "service_tokens_per_s", "engine_tokens_per_s", "prompt_tokens"))
    assert 0 < result["ttft_ms"]["p50"] <= result["ttft_ms"]["p95"]


def test_neighbour_alternates_alone_and_beside_a_busy_process(bench: Bench) -> None:
    result = bench("neighbour", *SMALL, "--rounds", "1", "--tokens", "4")
    assert result["with_over_alone"] > 0
    assert {"alone", "with"} == result["threads"].keys()
    assert result["waiting"]


def test_adapter_comes_and_goes_while_others_speak(bench: Bench) -> None:
    result = bench("adapter", *SMALL, "--loads", "2", "--replacements", "3", "--threads", "1")
    names = {"load_ms", "stall_ms", "ordinary_step_ms", "bytes_resident", "bytes_file", "bytes_ratio"}
    assert names | {"rss_start_mb", "rss_end_mb", "rss_growth_mb"} <= result.keys()
    assert result["bytes_ratio"] == pytest.approx(result["bytes_resident"] / result["bytes_file"], rel=1e-3)


def test_crowd_tells_what_a_player_waits_and_who_waits_for_whom(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("personae.cli.bench.crowd.MOST_TRIES", 1)
    result = bench("crowd", "--slots", "2", "--rank", "2", "--rounds", "1", "--tokens", "200", "--pour-s", "1")
    assert all(
        result[name] > 0 for name in ("ttft_ratio_2_over_0", "ttft_ratio_2_over_0_new", "longest_step_over_target", "max_wait_over_mean")
    )
    assert result["ttft_ms"].keys() == {"known", "new"}
    for waited in result["ttft_ms"].values():
        assert waited.keys() == {"0", "1", "2"}
        assert all(0 < one["median"] <= one["p95"] for one in waited.values())
    assert result["adapters_that_waited"] == 2


def test_packs_tell_what_they_cost_at_start_in_play_and_when_they_are_too_many(bench: Bench) -> None:
    few = ("--packs", "3", "--starts", "1", "--speaking", "1", "--dropins", "2", "--voices", "4", "--budget", "2", "--pour-s", "2")
    result = bench("packs", "--rank", "2", *few)
    assert result["startup_ms"]["all"] > 0
    assert 0 < result["dropin_to_known_ms"] < result["dropin_to_first_token_ms"]
    assert result["dropins"] == 1
    assert result["answered"] == result["voices"] == 4
    assert 0 < result["most_resident_over_budget"] <= 1
    assert result["adapter_loads"] >= 4
    assert result.keys() >= {"startup_ms_per_pack", "idle_kib_per_pack", "longest_extra_step_over_ordinary", "max_wait_over_mean"}


def test_reuse_tells_what_is_prefilled_again(bench: Bench) -> None:
    result = bench("reuse", "--slots", "2", "--rank", "2", "--rounds", "1", "--sentences", "2", "--tokens", "4")
    assert 0 < result["prefilled_over_new"] <= 1.2
    assert 0 < result["fetched_over_new"] <= 1.2
    assert result["fetched_from"] == {"host": 1}
    assert result["copied_from"] == {"copy": 1}
    assert result["copy_over_prefill"] > 0


def test_formats_cover_every_combination_and_the_voices(bench: Bench, packs: Path) -> None:
    result = bench("formats", "--turns", "1", "--characters", str(packs))
    assert {row["format"] for row in result["speeds"]} == set(formats.FORMATS) == set(result["voices"])
    assert {row["flash_attention"] for row in result["speeds"]} == {True, False}
    assert all(row[name] > 0 for row in result["speeds"] for name in ("step_1_ms", "step_8_ms", "prefill_tokens_per_s"))
    for voice in result["voices"].values():
        assert voice["gain_nats"] == pytest.approx(voice["none_nll"] - voice["own_nll"], abs=1e-2)


def test_formats_say_why_there_are_no_voices(bench: Bench, tmp_path: Path) -> None:
    assert "no packs" in bench("formats", "--turns", "1", "--characters", str(tmp_path))["voices"]["note"]


LLAMA_SERVER = """#!{python}
import http.server, json, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200); self.end_headers()
        if asked["lora"] != [{{"id": asked["id_slot"], "scale": 1.0}}]:
            asked["n_predict"] = 0
        for token in range(asked["n_predict"]):
            self.wfile.write(b"data: " + json.dumps({{"content": "a", "tokens": [token + 1]}}).encode() + b"\\n\\n")
    def log_message(self, *args): pass
port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.mark.skipif(os.name == "nt", reason="a script is no program there")
def test_peer_is_spoken_to_as_we_are(bench: Bench, tmp_path: Path) -> None:
    program = tmp_path / "llama server"
    program.write_text(LLAMA_SERVER.format(python=sys.executable))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    result = bench("peer", *SMALL, "--llama-server", str(program), "--rounds", "1", "--tokens", "4")
    assert all(result[name] > 0 for name in ("tokens_ratio", "cold_wait_ratio", "warm_wait_ratio"))
    assert result["last_first_token_s"].keys() == {"cold", "warm"}
    assert result["prompt_tokens"]["personae"] == result["prompt_tokens"]["llama_server"]


def test_peer_that_is_not_there_is_the_users_mistake(model: TinyModel, tmp_path: Path) -> None:
    from personae.cli.bench.llama_server import LlamaServer

    with pytest.raises(AskedWrong, match="cannot be run"):
        LlamaServer(tmp_path / "nothing", model.path, [tmp_path], n_ctx=64, threads=1)


def test_table_is_markdown() -> None:
    assert report.markdown(["a", "long"], [["1", "2"]]).splitlines() == ["| a | long |", "| - | ---- |", "| 1 | 2    |"]


def test_unknown_benchmark_is_a_bad_argument(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["bench", "everything"])
    assert ended.value.code == 4
    assert "mix" in capsys.readouterr().err


def test_help_names_every_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["bench", "--help"])
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("mix", "parity", "service", "neighbour", "adapter", "formats", "crowd", "reuse", "peer"))


def test_fake_model_cannot_be_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "mix", "--model", "fake"]) == 4
    assert "real model" in capsys.readouterr().err


def test_percentile_is_a_value_that_was_seen() -> None:
    assert [figures.percentile([3, 1, 2, 4], share) for share in (0.25, 0.5, 0.95)] == [1, 2, 4]
    assert figures.percentile([7], 0.01) == 7


def test_ratio_is_taken_of_neighbours() -> None:
    assert figures.paired_ratio([2, 40, 6], [1, 10, 2, 99]) == 3


def test_conversion_is_done_once_and_kept(bench: Bench, model: TinyModel, cache: Path) -> None:
    first = formats.resolve(model.path, "q4_0", 1)
    written = first.stat().st_mtime_ns
    assert formats.resolve(model.path, "q4_0", 1) == first
    assert first.stat().st_mtime_ns == written
    assert first.is_relative_to(cache)
    assert read_header(first).tensors["blk.0.attn_q.weight"].dtype == "q4_0"
    assert not list(first.parent.glob("*.part"))


def test_cut_cached_file_is_converted_anew(bench: Bench, model: TinyModel) -> None:
    first = formats.resolve(model.path, "q4_0", 1)
    whole = first.stat().st_size
    first.write_bytes(first.read_bytes()[: whole // 2])
    assert formats.resolve(model.path, "q4_0", 1).stat().st_size == whole


def test_model_in_the_wanted_format_is_used_itself(model: TinyModel, tmp_path: Path) -> None:
    formats.convert(model.path, tmp_path / "model.gguf", "q8_0", 1)
    assert formats.resolve(tmp_path / "model.gguf", "q8_0", 1) == tmp_path / "model.gguf"
    assert formats.resolve(model.path, "as-is", 1) == model.path


def test_cache_that_cannot_be_written_is_named(model: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(name, str(tmp_path / "file"))
    with pytest.raises(WorldFailed, match="could not be converted to q4_0") as failure:
        formats.resolve(model.path, "q4_0", 1)
    assert str(tmp_path / "file") in failure.value.message


def test_full_disk_is_said_before_anything_is_written(model: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1000})())
    with pytest.raises(WorldFailed, match="MB free"):
        formats.convert(model.path, tmp_path / "model.gguf", "f32", 1)
    assert not list(tmp_path.iterdir())


def test_model_that_cannot_be_converted_is_served_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from personae.cli.serve import in_format

    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF")
    assert in_format(broken, "q4_0") == broken
    assert "used as it is" in capsys.readouterr().err
