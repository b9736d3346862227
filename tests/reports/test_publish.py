"""What is published is what the files say."""

import json
from hashlib import sha256

from PIL import Image

from reports import CHECKOUT
from reports.__main__ import main
from reports.drawing import figure as drawing
from reports.pages import publish
from reports.pages.report import report
from reports.reading import runs


def test_the_page_of_results_is_what_the_published_runs_say():
    assert publish.text(publish.PUBLISHED) == publish.PAGE.read_text(), "python -m reports publish"


def test_a_run_is_kept_with_the_digits_that_are_known(tiny_data, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(publish, "PUBLISHED", tmp_path)
    monkeypatch.setattr(publish, "PAGE", tmp_path / "results.md")
    monkeypatch.setattr(publish, "FIGURE", tmp_path / "latency.png")
    tiny_data["benchmarks"][0]["extra_info"] |= {key: [1.0] for key in publish.UNREAD}
    tiny_data["benchmarks"][0]["stats"]["median"] = 0.00123456789
    tiny_data["command"] = "pytest /home/of/somebody/bench --T 16"
    saved = tmp_path.parent / "0007_length.json"
    saved.write_text(json.dumps(tiny_data))
    assert main(["publish", str(saved)]) == 0
    made = [str(tmp_path / name) for name in ("0001_length.json", "results.md", "latency.png")]
    assert capsys.readouterr().out.splitlines() == made and (tmp_path / "latency.png").is_file()
    after = json.loads((tmp_path / "0001_length.json").read_text())
    assert not any({*publish.UNREAD} & row["extra_info"].keys() for row in after["benchmarks"])
    assert after["benchmarks"][0]["stats"]["median"] == 0.00123457
    assert after["command"] == "pytest bench/ --T 16"


def test_the_readmes_figure_is_drawn_from_the_newest_published_run():
    (*_, newest) = sorted(publish.PUBLISHED.glob("*_length.json"))
    with Image.open(CHECKOUT / "docs" / "latency.png") as figure:
        assert figure.info["Source"] == f"{newest.stem} {sha256(newest.read_bytes()).hexdigest()}"
    this = report(runs.read(newest))  # sdpa is recommended, and tied with sdpa+compile, whose median is smaller
    title = drawing.draw("latency", this.grid, this.palette, "fused").texts[0].get_text()
    said, _, where = (CHECKOUT / "README.md").read_text().partition('alt="')[2].partition(":")[0].partition(" times")
    assert title == f"{said}×{where}" and this.headline.startswith(f"Use {title.split()[0]}:")


def test_figures_of_the_tutorials_in_the_docs_are_those_of_the_published_run():
    (path,) = publish.PUBLISHED.glob("*_tutorial.json")
    rows = {row["extra_info"]["impl"]: row for row in json.loads(path.read_text())["benchmarks"]}
    fused, fresh = rows["fused"]["stats"]["median"], rows["fused"]["extra_info"]["fresh_pages_s"]
    text = " ".join((CHECKOUT / "docs" / "measured.md").read_text().split())
    told = text.partition("## What should a reader of the tutorials expect?")[2].partition("## ")[0]
    for said in (
        f"hold {rows['fused']['extra_info']['peak_bytes'] / 2**20:.0f} MiB",
        f"`fused` takes {fresh:.2f} s then, and {fused:.2f} s in our run",
        f"here {1 / rows['sdpa']['extra_info']['ratio']:.1f} times",
    ):
        assert said in told, said
    assert fused > rows["sdpa"]["stats"]["median"]


def test_getting_started_shows_what_the_published_run_says_at_80_columns(tmp_path, printed, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    machine = tmp_path / "machine"
    machine.mkdir()
    (path,) = publish.PUBLISHED.glob("*_quick.json")
    (machine / path.name).write_bytes(path.read_bytes())
    text = (CHECKOUT / "docs" / "getting-started.md").read_text()
    assert printed("advise", "--results", tmp_path, "--dtype", "bf16", "--mask", "causal") in text
    headline = publish.PAGE.read_text().partition("## quick\n\n**")[2].partition("**")[0]
    assert headline in text


def test_a_run_on_an_unsteady_machine_is_published_with_a_warning(tiny_data, tmp_path):
    (tmp_path / "0001_x.json").write_text(json.dumps(tiny_data | {"controls": {"drift": 1.5}}))
    assert "The reference workload's time changed by" in publish.text(tmp_path)
