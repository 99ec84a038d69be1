from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from rljob_trainer.errors import DataError
from rljob_trainer.progress import names, plot
from rljob_trainer.progress.metrics import MetricsWriter
from rljob_trainer.volume import Volume, write_json

SFT_STEPS, STEPS = 4, 12


def make_run(
    folder: Path, *, scale: float = 1.0, lacking: tuple[str, ...] = (), stages: str = "both",
    more: dict[str, float] | None = None,
) -> Path:  # fmt: skip
    panels = (
        names.RESPONSE_LENGTH_MEAN,
        names.ACTOR_ENTROPY,
        names.ACTOR_KL,
        names.ACTOR_CLIP_FRACTION,
        names.ACTOR_GRAD_NORM,
        names.ROLLOUT_LOG_PROB_DIFF_MEAN,
        names.ROLLOUT_EFFECTIVE_SAMPLE_SIZE,
    )
    write_json(Volume(folder).claim(1), {"attempt": 1, "parent": None, "resumedStep": 0})
    with MetricsWriter(Volume(folder), 1) as writer:
        for step in range(1, STEPS + 1):
            if (step <= SFT_STEPS and stages == "both") or stages == "sft":
                metrics = {names.ACTOR_LOSS: 3.0 / step, names.TIME_UPDATE: 0.1, names.TIME_STEP: 0.1}
                writer.write(step, "sft", metrics)
                continue
            metrics = dict.fromkeys(panels, scale * step) | {names.REWARD_MEAN: scale * step / 10}
            metrics |= {names.TIME_ROLLOUT: 2.0 * scale, names.TIME_UPDATE: 1.0, names.TIME_STEP: 3.0}
            metrics |= more or {}
            if step % 6 == 0:
                metrics[names.VALIDATION_REWARD] = step / 12
            writer.write(step, "rl", {name: value for name, value in metrics.items() if name not in lacking})
    return folder


def panel(figure: Figure, title: str) -> Axes:
    return next(axes for axes in figure.axes if axes.get_title(loc="left").startswith(title))


def lines(axes: Axes, label: str) -> list[tuple[list[float], list[float]]]:
    found = [line for line in axes.lines if line.get_label() == label]
    return [(np.asarray(line.get_xdata()).tolist(), np.asarray(line.get_ydata()).tolist()) for line in found]


def test_the_panels_hold_the_runs_numbers(tmp_path: Path) -> None:
    figure = plot.draw(plot.load_runs([make_run(tmp_path / "one")]))
    steps = list(range(SFT_STEPS + 1, STEPS + 1))

    assert lines(panel(figure, "Reward"), "raw") == [(steps, [step / 10 for step in steps])]
    assert lines(panel(figure, "Reward"), "validation") == [([6, 12], [0.5, 1.0])]
    for title in ("Response length", "Entropy", "KL", "Clipped", "Gradient norm", "Log-prob", "Effective"):
        assert lines(panel(figure, title), "raw") == [(steps, steps)], title
    assert panel(figure, "Reward").get_xlim() == (0, STEPS + 0.5)


def test_what_gpus_did_has_panels_where_it_was_measured(tmp_path: Path) -> None:
    on_cpus = plot.draw(plot.load_runs([make_run(tmp_path / "cpu")]))
    figure = plot.draw(plot.load_runs([make_run(tmp_path / "gpu", more={names.MEMORY_UPDATE: 3.0 * (1 << 30)})]))
    steps = list(range(SFT_STEPS + 1, STEPS + 1))
    assert lines(panel(figure, "GPU memory"), "raw") == [(steps, [3.0] * len(steps))]
    titles = [[axes.get_title(loc="left") for axes in each.axes] for each in (on_cpus, figure)]
    assert {title for title in titles[1] if title not in titles[0]} == {
        "MFU of an update (share)", "GPU memory of an update (GiB)"
    }  # fmt: skip
    for title in ("Idle engines", "Idle ranks"):
        assert panel(on_cpus, title).get_ylim() == panel(figure, title).get_ylim()


def test_several_runs_share_the_panels_and_are_told_apart_by_the_legend(tmp_path: Path) -> None:
    runs = plot.load_runs([make_run(tmp_path / "one"), make_run(tmp_path / "two", scale=2.0)])
    figure = plot.draw(runs)

    ends = [values[-1] for _, values in lines(panel(figure, "Reward"), "raw")]
    assert ends == pytest.approx([1.2, 2.4])
    assert [text.get_text() for text in figure.legends[0].texts] == ["one", "two"]
    times = panel(figure, "Mean time of an RL step")
    assert [bar.get_bbox().width for bar in times.patches if isinstance(bar, Rectangle)] == pytest.approx(
        [2.0, 4.0, 1.0, 1.0]
    )
    assert [label.get_text() for label in times.get_yticklabels()] == ["one", "two"]


def test_the_picture_is_written_where_it_was_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "new" / "curves.png"
    plot.save(plot.draw(plot.load_runs([make_run(tmp_path / "one")])), path)
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert path.stat().st_size > 20_000


@pytest.mark.parametrize("name", ["curves.xyz", "/proc/no/curves.png"])
def test_a_picture_that_cannot_be_written_is_an_error(tmp_path: Path, name: str) -> None:
    figure = plot.draw(plot.load_runs([make_run(tmp_path / "run")]))
    with pytest.raises(DataError, match=r"cannot be written: .*; choose another --output"):
        plot.save(figure, tmp_path / name)


def test_a_directory_without_metrics_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no metrics"):
        plot.load_runs([tmp_path])


@pytest.mark.parametrize("runs", [1, 2])
def test_a_run_that_has_only_validated_is_drawn(runs: int) -> None:
    figure = plot.draw([plot.Run("one", [{"step": 0, "stage": "rl", names.VALIDATION_REWARD: 0.5}])] * runs)
    assert lines(panel(figure, "Reward"), "validation")[0] == ([0], [0.5])


def test_a_line_of_metrics_without_a_stage_is_left_out(tmp_path: Path) -> None:
    run = make_run(tmp_path / "one")
    with Volume(run).metrics(1).open("a") as file:
        file.write('{"step": 13, "reward/mean": 7.0}\n')
    figure = plot.draw(plot.load_runs([run]))
    assert lines(panel(figure, "Reward"), "raw")[0][0][-1] == STEPS


def test_smoothing_keeps_a_constant_and_the_centre_of_a_ramp_and_spreads_a_peak() -> None:
    constant, ramp, impulse = np.array([2.5] * 7), np.array([float(value) for value in range(21)]), np.zeros(21)
    impulse[10] = 1.0

    assert plot.smooth(constant) == pytest.approx(constant)
    assert plot.smooth(ramp)[3:-3] == pytest.approx(ramp[3:-3])
    peak = plot.smooth(impulse)
    assert peak[10] == pytest.approx(1 / (1 + 2 * sum(np.exp(-0.5 * distance**2) for distance in (1, 2, 3))))
    assert peak == pytest.approx(peak[::-1])
