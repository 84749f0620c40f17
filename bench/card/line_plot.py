# SPDX-License-Identifier: Apache-2.0
"""Draws lines and bars into an SVG, on the standard library alone.

A picture is a list of panels, one below the other; a panel has a title, a unit for its y axis,
and curves: (name, [(x, y), ...], steps?).
"""
import math
from xml.sax.saxutils import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 900, 260, 70, 20, 34, 44
COLOURS = ("#1f6fb4", "#d1602a", "#3a8f4d", "#8a4fa3", "#7a6a2b", "#b03050")
MOST_POINTS = 1500  # of a curve: what is finer than a pixel only makes the file large


def ticks(most):
    """About five round numbers from 0 to most."""
    if most <= 0:
        return [0]
    step = 1.0
    while step * 5 < most:
        step *= 10
    while step * 5 > most and step * 2.5 >= most:
        step /= 2
    return [step * i for i in range(int(most / step) + 1)]


def between(least, most):
    """About five round numbers of that range."""
    step = (ticks(most - least) + [1.0])[1]
    return [step * i for i in range(math.ceil(least / step), math.floor(most / step) + 1)]


def thin(points):
    """At most MOST_POINTS; of neighbours that fall together the highest stays."""
    size = -(-len(points) // MOST_POINTS)
    return [max(points[i:i + size], key=lambda p: p[1]) for i in range(0, len(points), size or 1)]


def shown(value):
    return f"{value:g}" if value < 1e4 else f"{value:,.0f}"


class Panel:
    """One diagram; see the module."""

    def __init__(self, title, unit, x_title, curves):
        self.title, self.unit, self.x_title = title, unit, x_title
        self.curves = [(name, thin(points), steps) for name, points, steps in curves if points]
        everything = [p for _, points, _ in self.curves for p in points]
        self.least_x = min((x for x, _ in everything), default=0)
        self.most_x = max((x for x, _ in everything), default=1)
        self.most_y = 1.08 * max((y for _, y in everything), default=1) or 1

    def x(self, value):
        span = (self.most_x - self.least_x) or 1
        return LEFT + (value - self.least_x) / span * (WIDTH - LEFT - RIGHT)

    def y(self, value):
        return HEIGHT - BOTTOM - value / self.most_y * (HEIGHT - TOP - BOTTOM)

    def svg(self, down):
        out = [f'<g transform="translate(0 {down})">',
               f'<text x="{LEFT}" y="18" class="t">{escape(self.title)}</text>']
        for tick in ticks(self.most_y):
            at = self.y(tick)
            out.append(f'<path d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}" class="g"/>'
                       f'<text x="{LEFT - 8}" y="{at + 4:.1f}" class="y">{shown(tick)}</text>')
        out.append(f'<text x="14" y="{TOP - 4}">{escape(self.unit)}</text>')
        for tick in between(self.least_x, self.most_x):
            out.append(f'<text x="{self.x(tick):.1f}" y="{HEIGHT - BOTTOM + 16}" '
                       f'class="x">{shown(tick)}</text>')
        out.append(f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 8}" class="y">'
                   f'{escape(self.x_title)}</text>')
        for number, (name, points, steps) in enumerate(self.curves):
            out.append(self.curve(number, name, points, steps))
        return "\n".join([*out, "</g>"])

    def curve(self, number, name, points, steps):
        colour = COLOURS[number % len(COLOURS)]
        path = f"M{self.x(points[0][0]):.1f} {self.y(points[0][1]):.1f}"
        for x, y in points[1:]:
            path += f"H{self.x(x):.1f}V{self.y(y):.1f}" if steps \
                else f"L{self.x(x):.1f} {self.y(y):.1f}"
        at = LEFT + 150 * number
        return (f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.4"/>'
                f'<path d="M{at} {HEIGHT - 12}h18" stroke="{colour}" stroke-width="3"/>'
                f'<text x="{at + 24}" y="{HEIGHT - 8}">{escape(name)}</text>')


def picture(title, panels):
    """The whole file."""
    height = 40 + HEIGHT * len(panels)
    style = ("text{font:12px sans-serif;fill:#333}.t{font-weight:bold}.y{text-anchor:end}"
             ".x{text-anchor:middle}.g{stroke:#ddd;stroke-width:1}")
    body = [panel.svg(40 + HEIGHT * i) for i, panel in enumerate(panels)]
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
                      f'width="{WIDTH}" height="{height}">', f"<style>{style}</style>",
                      '<rect width="100%" height="100%" fill="#fff"/>',
                      f'<text x="{LEFT}" y="24" class="t">{escape(title)}</text>',
                      *body, "</svg>"]) + "\n"
