"""Figures and tables: right numbers, readable labels, a text for those who cannot see, equal bytes."""

import matplotlib
import pytest
from figures import labels
from records import baseline, failed, ladder, planted

from helpers import plots
from helpers.comparison.ladder import Comparison
from helpers.plots import style


def test_speed_up_draws_what_was_measured():
    runs = ladder()
    figure, alt = plots.speed_up(runs)
    steps, whole, accuracy = figure.axes
    widths = [bar.get_width() for bar in steps.patches]
    assert widths == pytest.approx([1, 0.55, 1.82])
    whole_runs = [row["whole_run_speed_up"] for row in runs.rows()]
    assert [bar.get_width() for bar in whole.patches] == pytest.approx(whole_runs)
    assert [bar.get_width() for bar in accuracy.patches] == pytest.approx([0.9, 0.9, 0.9])
    ends = [[path.vertices[:, 0].tolist() for path in lines.get_paths()] for lines in steps.collections]
    rows = runs.rows()[1:]  # the baseline itself is exactly 1
    assert ends[1:] == [[pytest.approx([row["speed_up_low"], row["speed_up_high"]])] for row in rows]
    diamond = [line for line in steps.lines if line.get_marker() == "D"]
    assert [line.get_xdata()[0] for line in diamond] == [1.9]
    written = {text for text, _ in labels(figure)}
    assert written >= {"1.82×", "0.55×", "◇ predicted 1.90×", "ideal 2×", "baseline 1×", "90.0%"}
    assert all(said in alt for said in ("1.82×", "0.55×", "1.90×", "90.0%", "(CPU threads)", "resnet8 on digits"))


def test_where_the_interval_holds_1_a_difference_is_not_shown():
    _, alt = plots.speed_up(Comparison([baseline(), planted(speed=1.04), planted(devices=4, speed=1.8)]))
    assert "1.04×, not shown" in alt and "1.80×, accuracy" in alt and "1.00×, accuracy" in alt


def test_speed_up_shows_missing_numbers_as_missing():
    few = planted(devices=4)
    few["measured"].update(step_time_s=None, images_per_s=None)
    figure, alt = plots.speed_up(Comparison([baseline(accuracy=None), failed(prediction=1.5), few]))
    written = [text for text, _ in labels(figure)]
    assert {"failed", "too few\nsteps", "◇ predicted 1.50×"} <= set(written)
    assert "DDP ×2: failed." in alt
    figure, alt = plots.speed_up(Comparison([baseline(accuracy=None), planted(accuracy=None)]))
    assert "final loss" in [text for text, _ in labels(figure)]
    assert "1.42" in alt and "90.0%" not in alt


def test_table_is_readable_text():
    frame = plots.table(Comparison([*ladder().records, failed(devices=4, prediction=3)]))
    row, last = dict(frame.iloc[2]), dict(frame.iloc[3])
    numbers = {"step time (ms)": "55.2 (54.4–56.6)", "speed-up": "1.82× (1.75–1.89)", "predicted": "1.90×"}
    numbers |= {"efficiency": "91.0%", "accuracy": "90.0%", "final loss": "1.42", "peak memory (MB)": "620"}
    assert row.items() >= numbers.items()
    assert last.items() >= {"step time (ms)": "failed", "predicted": "3.00×", "speed-up": "–", "accuracy": "–"}.items()


def test_parts_add_up_to_the_whole_run():
    record = baseline(start=2.0)
    figure, alt = plots.parts([record])
    assert sum(bar.get_width() for bar in figure.axes[0].patches) == pytest.approx(record["total_s"])
    assert "start 2.0" in alt and "rest 0.050" in alt
    with pytest.raises(ValueError, match="record"):
        plots.parts([failed()])


def test_the_bytes_depend_on_the_records_alone():
    before = dict(matplotlib.rcParams)
    first = style.svg(*plots.speed_up(ladder()))
    assert dict(matplotlib.rcParams) == before
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "black", "text.usetex": True}):
        assert style.svg(*plots.speed_up(ladder())) == first


def test_a_notebook_keeps_the_text(monkeypatch):
    """In a notebook the figure's text is its plain output and the picture's alt."""
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda data, raw, metadata: shown.append((data, metadata)))
    figure, alt = plots.parts([baseline()])
    plots.show(figure, alt)
    [(data, metadata)] = shown
    assert data["text/plain"] == metadata["image/png"]["alt"] == alt and set(data) == {"text/plain", "image/png"}
    assert metadata["image/png"]["width"] == round(style.WIDTH * style.CSS_PIXELS)
