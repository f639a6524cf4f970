"""The analytic figures: what their numbers claim, and what the command writes."""

import io
import json
import math
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch
import tyro
from PIL import Image
from rich.console import Console
from scipy.stats import spearmanr

from paper.figures import (
    NAMES,
    Derivatives,
    DrawFigure,
    FoundObjects,
    PotentialGaps,
    Scaling,
    command,
    derivatives,
    draw_attention,
    draw_masks,
    draw_objective,
    draw_potentials,
    draw_temperature,
    draw_unnormalised,
    found_objects,
    gaps_of,
    potential_gaps,
    run_figure,
    scaling,
)
from paper.figures.objective import TASK
from paper.figures.temperature import entropy_and_gradient
from slotmesh.ops import entropy, mesh, sinkhorn
from slotmesh.report.figures import save_figure, shades, svg_bytes
from slotmesh.training.evaluate import evaluate_run
from slotmesh.training.loop import run_train

from ..training._jobs import change, metrics

SMALL = change(
    TASK,
    data__batch_size=16,
    data__n_objects=4,
    data__n_background=12,
    data__dim=8,
    data__test_size=256,
    optim__lr=1e-2,
)
QUICK = change(TASK, data__test_size=64)
DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(scope="module")
def scaled() -> Scaling:
    return scaling(n_draws=8, n_factors=31)


@pytest.fixture(scope="module")
def gaps() -> PotentialGaps:
    return potential_gaps(n_draws=4)


@pytest.fixture(scope="module")
def derived() -> Derivatives:
    return derivatives(n_steps=2, task=QUICK)


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, list[str]]:
    """The folder and the screen after ``all``, and what was computed for it."""
    out, screen, computed = tmp_path_factory.mktemp("all") / "new" / "folder", io.StringIO(), []

    def noting(compute):
        def noted(**options):
            computed.append(compute.__name__)
            # A few factors and samples are as good as all of them here.
            fewer = {scaling: {"n_factors": 11}, derivatives: {"task": QUICK}}
            return compute(**options, **fewer.get(compute, {}))

        return noted

    noted = {recipe.compute: noting(recipe.compute) for recipe in command.RECIPES.values()}
    with pytest.MonkeyPatch.context() as patch:
        for name, recipe in command.RECIPES.items():
            patch.setitem(command.RECIPES, name, replace(recipe, compute=noted[recipe.compute]))
        pictures = run_figure(
            DrawFigure("all", out=out, draws=4, steps=2), Console(file=screen, width=80)
        )
    assert pictures == [out / f"{name}.svg" for name in NAMES]
    return out, screen.getvalue(), computed


# Temperature.


def closed_form(factor: np.ndarray, temperature: float) -> tuple[np.ndarray, np.ndarray]:
    """Normalised entropy and gradient norm of Sinkhorn on a scaled 10 x 10 identity, no noise.

    The plan has p on its diagonal and q elsewhere, p / q = exp(factor / temperature). By symmetry
    the gradient is a multiple of I - 1/10, which has a norm of 3 and I a component of 9 along it.
    """
    x = factor / temperature
    odds = np.exp(np.minimum(x, 500))
    p, q = odds / (odds + 9), 1 / (odds + 9)
    h = -p * np.log(p) - 9 * q * np.log(q)
    return h / math.log(10), 10 / 3 * x * 9 * p * q / temperature


def test_sinkhorn_is_the_closed_form(scaled: Scaling) -> None:
    for i, temperature in enumerate((1.0, 0.1)):
        h, norm = closed_form(scaled.factors, temperature)
        assert scaled.sinkhorn_entropy[i] == pytest.approx(h, abs=1e-3)
        # The noise is all there is where the factor is smaller than it.
        clear = scaled.factors > 0.03
        assert scaled.sinkhorn_gradient[i, clear] == pytest.approx(norm[clear], rel=0.01, abs=1e-3)


def test_entropy_is_a_share(scaled: Scaling) -> None:
    for curves in (scaled.sinkhorn_entropy, scaled.mesh_entropy):
        assert curves.min() >= 0
        assert curves.max() <= 1
        # The larger the factor, the more is decided already.
        assert (np.diff(curves, axis=-1) < 1e-3).all()
    assert (np.diff(scaled.mesh_entropy, axis=0) <= 1e-9).all()


def test_mesh_decides_where_sinkhorn_cannot(scaled: Scaling) -> None:
    """The figure's caption."""
    low = (scaled.factors > 0.009) & (scaled.factors < 0.1)
    assert (scaled.sinkhorn_entropy[0, low] > 0.999).all()
    by_lr = dict(zip(scaled.learning_rates, scaled.mesh_entropy[:, low], strict=True))
    assert (by_lr[5.0] < 0.05).all()
    assert (by_lr[3.0] < 0.35).all()
    assert (scaled.mesh_gradient[:, low] > 0.2).all()
    assert (scaled.sinkhorn_gradient[0, low] < 0.04).all()
    confident = scaled.factors > 20
    for curves in (
        scaled.sinkhorn_entropy,
        scaled.mesh_entropy,
        scaled.sinkhorn_gradient,
        scaled.mesh_gradient,
    ):
        assert (curves[:, confident] < 1e-3).all()


def decades_above(factors: np.ndarray, gradient: np.ndarray) -> float:
    """Over how many decades of factors the gradient is above a tenth of its maximum."""
    decade = float(np.log10(factors[1] / factors[0]))
    return decade * float((gradient > 0.1 * gradient.max()).sum())


def test_temperature_moves_the_gradients_and_mesh_widens_them(scaled: Scaling) -> None:
    sh = [decades_above(scaled.factors, g) for g in scaled.sinkhorn_gradient]
    wide = [decades_above(scaled.factors, g) for g in scaled.mesh_gradient]
    assert max(sh) - min(sh) < 0.26
    assert min(wide) > 2 * max(sh)
    peaks = scaled.sinkhorn_gradient.max(-1) * scaled.temperatures
    assert peaks == pytest.approx(np.full(3, peaks[0]), rel=0.02)
    assert scaled.mesh_gradient.max() < 3 * scaled.mesh_gradient.max(-1).min()


def test_decades_are_counted() -> None:
    factors = np.logspace(-3, 2, 51)
    gradient = np.where((factors > 0.0099) & (factors < 1.01), 1.0, 0.05)
    assert decades_above(factors, gradient) == pytest.approx(2.1)


def test_gradient_norms_are_those_of_finite_differences() -> None:
    generator = torch.Generator().manual_seed(1)
    cost = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    noise = 1e-3 * torch.randn(3, 4, generator=generator, dtype=torch.float64)

    def differences(value, at: torch.Tensor) -> float:
        slopes = []
        for i in range(at.numel()):
            h = torch.zeros(at.numel(), dtype=torch.float64)
            h[i] = 1e-5
            h = h.reshape(at.shape)
            slopes.append((value(at + h) - value(at - h)).item() / 2e-5)
        return math.hypot(*slopes)

    def cold(c: torch.Tensor):
        return sinkhorn(c, temperature=0.3)

    h, norm = entropy_and_gradient(cost, cold)
    assert h.item() == pytest.approx(entropy(cold(cost).plan, normalized=True).item())
    assert norm.item() == pytest.approx(differences(lambda c: cold(c).entropy(), cost), rel=1e-6)

    # Straight through: the gradient at the changed cost, as it is.
    def changing(c: torch.Tensor):
        return mesh(c, lr=1.0, noise=noise, potentials="fresh")

    _, norm = entropy_and_gradient(cost, changing)
    at = changing(cost).cost
    assert norm.item() == pytest.approx(differences(lambda c: sinkhorn(c).entropy(), at), rel=1e-6)


def test_a_batch_is_measured_one_by_one() -> None:
    cost = torch.randn(4, 3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    together = entropy_and_gradient(cost, sinkhorn)
    alone = [entropy_and_gradient(c, sinkhorn) for c in cost]
    for i in (0, 1):
        assert torch.allclose(together[i], torch.stack([one[i] for one in alone]))


# Potentials.


def test_reused_potentials_are_nearer_to_the_ideal(gaps: PotentialGaps) -> None:
    assert gaps.iterations.tolist() == list(range(1, 11))
    assert gaps.ideal_error.max() < 1e-6
    assert gaps.reused[:, 0] == pytest.approx(gaps.fresh[:, 0], rel=1e-12)
    assert (gaps.reused[:, 1:] < gaps.fresh[:, 1:]).all()
    assert (gaps.reused.mean(0)[1:] < 0.5 * gaps.fresh.mean(0)[1:]).all()


def test_the_ideal_is_mesh_with_converged_sinkhorns() -> None:
    """Step by step it is the same as at once."""
    generator = torch.Generator().manual_seed(0)
    cost = torch.randn(3, 4, 6, generator=generator, dtype=torch.float64)
    noise = 1e-3 * torch.randn(3, 4, 6, generator=generator, dtype=torch.float64)
    numbers = gaps_of(cost, noise, lr=1.0, n_iterations=4)
    at_once = mesh(cost, noise=noise, lr=1.0, n_steps=3, n_iters=300).plan
    short = mesh(cost, noise=noise, lr=1.0, n_steps=3, n_iters=5).plan
    expected = (short - at_once).abs().mean((-2, -1)).numpy()
    assert numbers.reused[:, 3] == pytest.approx(expected, rel=1e-6)


# Objective.


def test_derivative_of_the_entropy(derived: Derivatives) -> None:
    assert derived.p.min() > 0
    assert derived.p.max() == 1
    assert derived.entropy == pytest.approx(-(np.log(derived.p) + 1))
    # Scaled and shifted, and nothing else.
    assert abs(np.corrcoef(derived.fitted_entropy, derived.entropy)[0, 1]) == pytest.approx(1)
    rest = derived.learned - derived.fitted_entropy
    assert rest.mean() == pytest.approx(0, abs=1e-9)
    assert rest @ derived.entropy == pytest.approx(0, abs=1e-6)


def test_rank_correlation_is_scipys(derived: Derivatives) -> None:
    expected = spearmanr(derived.initial, derived.entropy).statistic
    assert derived.initial_rank_correlation == pytest.approx(expected)
    expected = spearmanr(derived.learned, derived.entropy).statistic
    assert derived.rank_correlation == pytest.approx(expected)


def test_the_objective_is_trained(derived: Derivatives) -> None:
    assert derived.steps.tolist() == [0, 2]
    assert not np.array_equal(derived.learned, derived.initial)


def test_the_errors_are_those_of_slotmesh_train(tmp_path: Path) -> None:
    numbers = derivatives(n_steps=2, task=SMALL)
    settings = change(SMALL, out=tmp_path / "run", steps=2, hardware__accelerator="cpu")
    run = run_train(settings, Console(file=io.StringIO()))
    assert float(metrics(run.folder)[-1]["val/nrmse"]) == pytest.approx(numbers.errors[-1])
    found = evaluate_run(run, device="cpu")
    assert found["metrics"]["nrmse"] == pytest.approx(numbers.error)


@pytest.mark.slow
def test_the_learned_derivative_comes_to_fall_as_the_entropys() -> None:
    # With this seed it rises at first.
    numbers = derivatives(n_steps=150, task=SMALL, seed=1)
    assert numbers.initial_rank_correlation < 0
    assert numbers.rank_correlation > 0.5
    assert numbers.correlation > 0.7
    assert numbers.error < 0.8


# What slots attend to and hold.


@pytest.fixture(scope="module")
def found() -> FoundObjects:
    return found_objects(n_draws=2)


def test_mesh_decides_and_its_masks_are_sharper(found: FoundObjects) -> None:
    assert found.attention.shape == (2, 2, 3, 7, 64, 64, 3)
    assert found.masks.shape == (2, 2, 7, 64, 64, 3)
    plain, mesh = found.entropy
    assert mesh[-1] < plain[-1]
    # The image comes first, the same for both; slots divide it among them.
    whole, parts = found.masks[:, :, 0].astype(float), found.masks[:, :, 1:].astype(float)
    assert (whole[0] == whole[1]).all()
    assert np.abs(parts.sum(2) - whole).max() <= 4


# The command.


@pytest.mark.parametrize("name", NAMES)
def test_a_figure_is_written_whole_with_its_numbers(
    name: str, everything: tuple[Path, str, list[str]]
) -> None:
    out, said, _ = everything
    assert (out / f"{name}.svg").read_text().rstrip().endswith("</svg>")
    numbers = json.loads((out / f"{name}.json").read_text())
    assert numbers["figure"] == name
    assert numbers["settings"]["seed"] == 0
    assert f"{out / name}.svg: " in said.replace("\n", "")


def test_nothing_else_is_written_and_nothing_computed_twice(
    everything: tuple[Path, str, list[str]],
) -> None:
    out, _, computed = everything
    assert {p.name for p in out.iterdir()} == {
        f"{n}.{end}" for n in NAMES for end in ("json", "svg")
    }
    figures = ["scaling", "potential_gaps", "derivatives", "found_objects", "found_on_clevrtex"]
    assert computed == figures


def test_the_same_seed_is_the_same_figure(
    everything: tuple[Path, str, list[str]], gaps: PotentialGaps, derived: Derivatives
) -> None:
    """Computed twice: by the command, and for the other tests."""
    out = everything[0]
    for name, draw, numbers in (
        ("potentials", draw_potentials, gaps),
        ("objective", draw_objective, derived),
    ):
        assert (out / f"{name}.svg").read_bytes() == svg_bytes(draw(numbers))
        read = json.loads((out / f"{name}.json").read_text())
        for field in fields(numbers):
            expected = np.asarray(getattr(numbers, field.name))
            assert np.asarray(read[field.name]) == pytest.approx(expected, rel=1e-5)


def test_another_seed_is_another_figure_and_the_generator_is_left_alone(
    everything: tuple[Path, str, list[str]], tmp_path: Path
) -> None:
    before = torch.get_rng_state()
    settings = DrawFigure("potentials", out=tmp_path, format="png", draws=4, seed=1)
    [picture] = run_figure(settings, Console(file=io.StringIO()))
    assert torch.equal(before, torch.get_rng_state())
    other = json.loads((tmp_path / "potentials.json").read_text())
    assert other["settings"] == {"n_draws": 4, "seed": 1}
    assert other["reused"] != json.loads((everything[0] / "potentials.json").read_text())["reused"]
    with Image.open(picture) as image:
        image.load()
        assert (image.format, image.width > 800) == ("PNG", True)


def test_the_objective_leaves_the_generator_and_the_threads_alone() -> None:
    before = torch.get_rng_state(), torch.get_num_threads()
    seen: list[tuple[int, int]] = []
    derivatives(n_steps=2, task=SMALL, on_progress=lambda done, total: seen.append((done, total)))
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == torch.get_num_threads()
    assert seen == [(1, 2), (2, 2)]


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"name": "entropyy"}, "'entropyy', expected one of temperature, "),
        ({"name": "potentials", "draws": 0}, "--draws is 0"),
        ({"name": "all", "steps": -1}, "--steps is -1"),
        ({"name": "potentials", "steps": 3}, "--steps does not apply to the figure potentials"),
        ({"name": "objective", "draws": 3}, "Use --steps instead"),
        ({"name": "potentials", "format": "pdf"}, "--format is 'pdf'"),
        ({"name": "potentials", "seed": -1}, "--seed is -1"),
    ],
)
def test_a_wrong_setting_names_its_flag(settings: dict, named: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=named):
        run_figure(DrawFigure(out=tmp_path / "x", **settings))
    assert not (tmp_path / "x").exists()


def test_an_unwritable_folder_is_known_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"--out .*file.*cannot be written to"):
        run_figure(DrawFigure("temperature", out=tmp_path / "file" / "x", draws=10**9))


def test_the_command_line_knows_the_names(capsys: pytest.CaptureFixture[str]) -> None:
    chosen = tyro.cli(DrawFigure, args=["potentials", "--format", "png", "--draws", "3"])
    assert chosen == DrawFigure("potentials", format="png", draws=3)
    with pytest.raises(SystemExit):
        tyro.cli(DrawFigure, args=["entropyy"])
    assert "temperature" in capsys.readouterr().err


# Drawing.


def test_shades_have_an_order() -> None:
    def light(colour: str) -> int:
        return sum(int(colour[i : i + 2], 16) for i in (1, 3, 5))

    found = [light(c) for c in shades("#2f7fb8", 4)]
    assert found == sorted(found, reverse=True)
    assert len(set(found)) == 4
    assert shades("#2f7fb8", 1) == ["#2f7fb8"]
    assert shades("#2f7fb8", 3)[1] == "#2f7fb8"


def test_another_format_is_an_error(gaps: PotentialGaps, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"expected \.svg or \.png"):
        save_figure(draw_potentials(gaps), tmp_path / "x.pdf")


def test_every_curve_is_in_the_legend(scaled: Scaling) -> None:
    for draw in (draw_temperature, draw_unnormalised):
        figure = draw(scaled)
        [legend] = figure.legends
        assert len(legend.get_texts()) == 7
        colours = [line.get_color() for line in legend.get_lines()]
        assert len(set(colours)) == 7


def texts(svg: str) -> set[str]:
    return {line.strip() for line in svg.splitlines() if line.strip().startswith("<!--")}


def test_the_pictures_of_the_docs_are_these(
    scaled: Scaling, gaps: PotentialGaps, derived: Derivatives, found: FoundObjects
) -> None:
    """Labels, ticks and legends; ticks of the learned objective depend on what was learned."""
    drawn = {
        "temperature": draw_temperature(scaled),
        "gradient-unnormalised": draw_unnormalised(scaled),
        "potentials": draw_potentials(gaps),
        "objective": draw_objective(derived),
        "attention": draw_attention(found),
        "masks": draw_masks(found),
        "masks-clevrtex": draw_masks(found_objects(n_draws=2, world="clevrtex")),
    }
    for name in NAMES:
        shown = texts((DOCS / "images" / "figures" / f"{name}.svg").read_text())
        now = texts(svg_bytes(drawn[name]).decode())
        words = {
            text for text in now if any(c.isalpha() for c in text) and "mathdefault" not in text
        }
        assert words
        assert words <= shown, name
    page = (DOCS / "figures.md").read_text()
    for name in NAMES:
        assert f"images/figures/{name}.svg" in page
