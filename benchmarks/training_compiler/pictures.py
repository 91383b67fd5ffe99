"""Four pictures of a comparison in one SVG: throughput, loss over samples, time for an epoch, its cost."""

COLOURS = ["#8a8f98", "#2563a8", "#d4572b", "#2b7a4b"]
WIDTH, HEIGHT, MARGIN = 900, 640, 58


def text(x, y, words, size=12, anchor="start", colour="#333"):
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{colour}">{words}</text>'


def bars(x, y, width, height, title, values, form):
    """`values`: a number for each name. Bars begin at 0."""
    out, highest = [text(x, y - 12, title, 14)], max(values.values())
    row = height / len(values)
    for i, (name, value) in enumerate(values.items()):
        top, length = y + i * row + 18, (width - 90) * value / highest
        out.append(text(x, top - 4, name, 11, colour="#555"))
        out.append(f'<rect x="{x}" y="{top:.1f}" width="{length:.1f}" height="{row - 28:.1f}" fill="{COLOURS[i]}"/>')
        out.append(text(x + length + 6, top + (row - 28) / 2 + 4, form.format(value)))
    return out


def curves(x, y, width, height, title, series):
    """`series`: points (samples, loss) for each name."""
    points = [point for each in series.values() for point in each]
    low, high, last = min(v for _, v in points), max(v for _, v in points), max(s for s, _ in points)
    span = high - low or 1

    def at(sample, loss):
        return f"{x + 40 + (width - 40) * sample / last:.1f},{y + height - height * (loss - low) / span:.1f}"

    out = [text(x, y - 12, title, 14), text(x + width, y + height + 18, f"{last} samples", 11, "end", "#555"),
           text(x + 34, y + 4, f"{high:.2f}", 11, "end", "#555"), text(x + 34, y + height, f"{low:.2f}", 11, "end", "#555"),
           f'<path d="M {x + 40} {y} V {y + height} H {x + width}" fill="none" stroke="#bbb"/>']
    # The curves lie on each other; the thinner are above the wider.
    for i, each in enumerate(series.values()):
        path = " ".join(at(*point) for point in each)
        out.append(f'<polyline points="{path}" fill="none" stroke="{COLOURS[i]}" stroke-width="{9 - 2.4 * i:.1f}" '
                   'stroke-linejoin="round" opacity="0.85"/>')
    return out


def draw(caption, throughput, losses, minutes, cost):
    """Each a value, or a list of points, for each name. Returns the SVG."""
    half, tall = WIDTH / 2 - 1.5 * MARGIN, HEIGHT / 2 - 1.7 * MARGIN
    right, lower = WIDTH / 2 + MARGIN / 2, HEIGHT / 2 + MARGIN
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>', text(MARGIN, 28, caption, 15)]
    out += bars(MARGIN, 78, half, tall, "Tokens a second", throughput, "{:.0f}")
    out += curves(right, 78, half, tall, "Loss over samples", losses)
    out += bars(MARGIN, lower, half, tall, "Minutes for 100,000 tokens", minutes, "{:.1f}")
    out += bars(right, lower, half, tall, "Cost of 100 million tokens", cost, "{:.2f}")
    return "\n".join([*out, "</svg>\n"])
