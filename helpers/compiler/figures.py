"""Figures of the compiler: what it could gain, what each plan gained, and what it cost.

The functions return (figure, alt).
"""

import math

from ..plots import style
from ..plots.drawing import NAMES, fitted, heights, key, line_style, name_ends, row_names, write_foot, write_title
from ..plots.style import beside, clean, percent, times
from .plan_figures import plans
from .time_figures import break_even, step_times

__all__ = ["break_even", "plans", "prediction", "profile", "step_times"]

FILLS = {  # kinds of op_kinds: colour, hatch
    "convolution": (style.SKY, ""), "depthwise convolution": (style.SKY, "xx"), "matmul": (style.GREEN, ""),
    "normalisation": (style.ORANGE, "//"), "pointwise": (style.ORANGE, ""),
    "pooling/softmax/loss": (style.PURPLE, "\\\\"), "other": (style.GREY, ".."), "bookkeeping": ("white", ""),
}  # fmt: skip
FUSED = ("normalisation", "pointwise")
ROW = 0.66  # inches: a model


def profile(profiles) -> tuple:
    """The share of a training step of each kind of work, a bar a model, and the bound on fusion beside it.

    Args:
        profiles: {name of the model: op_profile.Profile}.

    Raises:
        ValueError: there is no profile.
    """
    if not profiles:
        raise ValueError("no profile to draw: give {name: op_profile.profile(model, images, labels)}")
    used = [kind for kind in FILLS if any(p.share.get(kind, 0) >= 0.0005 for p in profiles.values())]
    foot = [
        "Outlined: normalisation and pointwise work, which a compiler can fuse. At most: how much faster a step "
        "would be if they took no time (Amdahl); a better memory layout or better convolutions can give more."
    ]
    with style.look():
        figure = style.canvas(1)
        names = [fitted(figure, name, NAMES, 2, size=10) for name in profiles]
        high = ROW * len(names)
        top = 1.12 if len(used) > 5 else 0.9
        write_foot(figure, top + high + 0.42, foot)
        write_title(figure, "Where a training step spends its time")
        left = row_names(figure, names, top, ROW)
        axes = style.panel(figure, left, top, style.WIDTH - left - 0.95, high)
        axes.set(xlim=(0, 100), ylim=(len(names) - 0.5, -0.5), yticks=[])
        axes.set_xticks([0, 25, 50, 75, 100], ["0", "25", "50", "75", "100% of the step"])
        axes.xaxis.get_major_ticks()[-1].label1.set_horizontalalignment("right")
        key(figure, left, 0.47, [(kind, *FILLS[kind]) for kind in used])
        beside(axes, -0.62, "at most", size=9, color=style.SOFT)
        for y, each in enumerate(profiles.values()):
            _shares(axes, y, each.share)
            beside(axes, y - 0.1, _bound(each), weight="bold", size=12 if math.isfinite(each.pointwise_bound) else 9)
    alt = "Share of a training step by kind of work, and the most that fusing its pointwise work could gain."
    return figure, " ".join([alt, *(_profile_told(name, each) for name, each in profiles.items())])


def _shares(axes, y, share):
    from matplotlib.patches import Rectangle

    begin, inches = 0, axes.bbox.width / axes.figure.dpi / 100  # of a percent
    for kind, (colour, hatch) in FILLS.items():
        wide = 100 * share.get(kind, 0)
        axes.barh(
            y - 0.1, wide, left=begin, height=0.46, color=colour, hatch=hatch, edgecolor=style.INK, linewidth=0.6
        )
        if wide * inches > 0.45:
            axes.text(
                begin + wide / 2, y - 0.1, f"{wide:.0f}%", ha="center", va="center", size=9,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
            )  # fmt: skip
        begin += wide
    first = 100 * sum(share.get(kind, 0) for kind in list(FILLS)[: list(FILLS).index(FUSED[0])])
    fused = 100 * sum(share.get(kind, 0) for kind in FUSED)
    if fused:
        axes.add_patch(Rectangle((first, y - 0.33), fused, 0.46, fill=False, color=style.INK, linewidth=2.2, zorder=3))
    right = first + fused / 2 > 50
    axes.text(
        first + fused if right else first, y + 0.27, f"can be fused: {fused:.0f}%", size=9, color=style.SOFT,
        va="center", ha="right" if right else "left",
    )  # fmt: skip


def _bound(each):
    bound = each.pointwise_bound
    return times(bound) if math.isfinite(bound) else "no bound"


def _profile_told(name, each):
    told = [f"{kind} {percent(share)}" for kind, share in each.share.items() if share >= 0.0005]
    fused = percent(sum(each.share.get(kind, 0) for kind in FUSED))
    bound = f"is {_bound(each)}" if math.isfinite(each.pointwise_bound) else "is not finite"
    told = f"{clean(name)}: {', '.join(told)}; normalisation and pointwise work are {fused} of the step"
    return f"{told}, so the bound on what fusing them gains {bound}."


def prediction(points) -> tuple:
    """What was measured over what was predicted, a mark a model; on the dashed line they are equal.

    Args:
        points: [{"name", "predicted": a bound such as Profile.pointwise_bound, "measured": a speed-up}, …].

    Raises:
        ValueError: there is no point with finite numbers.
    """
    from matplotlib.ticker import MaxNLocator

    found = [p for p in points if math.isfinite(p["predicted"]) and math.isfinite(p["measured"])]
    if not found:
        raise ValueError(f"none of the {len(points)} point(s) has a finite prediction and a measurement")
    left_out = [clean(p["name"]) for p in points if p not in found]
    foot = ["Dashed: as predicted. Above it, the compiler gained more than fusion alone explains; below, less."]
    foot += [f"Left out, since there is no bound: {', '.join(left_out)}."] * bool(left_out)
    most = 1.1 * max(1.2, *(max(p["predicted"], p["measured"]) for p in found))
    least = min(1, *(0.95 * min(p["predicted"], p["measured"]) for p in found))
    with style.look():
        figure = style.canvas(1)
        said = [f"predicted {times(p['predicted'])}, measured {times(p['measured'])}" for p in found]
        names = [f"{fitted(figure, p['name'], 3, 1)}\n{each}" for p, each in zip(found, said, strict=True)]
        pitch, high = heights(names)
        high = max(high, 3.9)
        write_foot(figure, 0.52 + high + 0.5, foot)
        write_title(figure, "Speed-up by the compiler: measured over predicted")
        axes = style.panel(figure, 0.75, 0.52, 3.9, high)
        axes.plot([least, most], [least, most], color=style.INK, linestyle=(0, (6, 3)), linewidth=1.2)
        axes.axhline(1, color=style.GREY, linewidth=1.2)
        axes.set(
            xlim=(least, most), ylim=(least, most), ylabel="measured",
            xlabel="predicted: at most, if pointwise work took no time",
        )  # fmt: skip
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10]))
            axis.set_major_formatter(lambda value, _: f"{value:.3g}×")
        axes.grid()
        for place, p in enumerate(found):
            look = {**line_style(place), "markersize": 9}
            axes.plot(p["predicted"], p["measured"], **look, clip_on=False, zorder=4)
        name_ends(axes, [(p["predicted"], p["measured"], "", n) for p, n in zip(found, names, strict=True)], pitch)
    told = [_point_told(p) for p in found]
    return figure, " ".join(["Measured speed-up over the predicted bound, a mark a model.", *told, *foot[1:]])


def _point_told(p):
    ratio = p["measured"] / p["predicted"]
    than = "about as" if 0.98 <= ratio <= 1.02 else "more than" if ratio > 1 else "less than"
    told = f"{clean(p['name'])}: predicted at most {times(p['predicted'])}"
    return f"{told}, measured {times(p['measured'])}, {than} predicted."
