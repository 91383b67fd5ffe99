"""Draws a training run as SVG: loss over steps, where a rank was killed and where the run resumed."""


def run_picture(losses: list[tuple[int, float]], killed_at: int, resumed_from: int, caption: str) -> str:
    """`losses` in the order in which they were printed, so that a resumed run goes back and draws over itself."""
    width, height, left, right, top, bottom = 860, 420, 64, 24, 48, 56
    first, last = 1, max(step for step, _ in losses)
    low = int(min(loss for _, loss in losses))
    high = int(max(loss for _, loss in losses)) + 1

    def x(step: float) -> float:
        return left + (width - left - right) * (step - first) / max(1, last - first)

    def y(loss: float) -> float:
        return height - bottom - (height - top - bottom) * (loss - low) / (high - low)

    # A step back in the sequence is a resume: one line for each stretch.
    stretches, previous = [[]], 0
    for step, loss in losses:
        if step <= previous:
            stretches.append([])
        stretches[-1].append((step, loss))
        previous = step

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
           f'font-size="13"><rect width="{width}" height="{height}" fill="#ffffff"/>',
           f'<text x="{left}" y="24" font-size="15" fill="#222">{caption}</text>']
    for loss in range(low, high + 1):
        out.append(f'<line x1="{left}" y1="{y(loss):.1f}" x2="{width - right}" y2="{y(loss):.1f}" stroke="#e4e4e4"/>'
                   f'<text x="{left - 10}" y="{y(loss) + 4:.1f}" text-anchor="end" fill="#555">{loss}</text>')
    for step in range(0, last + 1, 50):
        at = x(max(step, first))
        out.append(f'<text x="{at:.1f}" y="{height - bottom + 20}" text-anchor="middle" fill="#555">{step}</text>')
    out.append(f'<text x="{(left + width - right) / 2}" y="{height - 14}" text-anchor="middle" fill="#555">step</text>'
               f'<text x="18" y="{(top + height - bottom) / 2}" fill="#555" text-anchor="middle" '
               f'transform="rotate(-90 18 {(top + height - bottom) / 2})">loss</text>')
    if killed_at > resumed_from:
        out.append(f'<rect x="{x(resumed_from):.1f}" y="{top}" width="{x(killed_at) - x(resumed_from):.1f}" '
                   f'height="{height - top - bottom}" fill="#d4572b" opacity="0.10"/>')
    for step, colour, words, label in ((resumed_from, "#2b7a4b", f"resumed from step {resumed_from}", height - bottom - 10),
                                       (killed_at, "#d4572b", f"rank 1 killed after step {killed_at}", top + 14)):
        out.append(f'<line x1="{x(step):.1f}" y1="{top}" x2="{x(step):.1f}" y2="{height - bottom}" stroke="{colour}" '
                   f'stroke-dasharray="4 3"/><text x="{x(step) + 6:.1f}" y="{label}" '
                   f'fill="{colour}">{words}</text>')
    for number, stretch in enumerate(stretches):
        points = " ".join(f"{x(step):.1f},{y(loss):.1f}" for step, loss in stretch)
        # The first stretch lies, wider and paler, under what the resumed run repeated: equal losses cover each other.
        colour, stroke = ("#9db7dd", 5) if number == 0 and len(stretches) > 1 else ("#1f4e9c", 1.6)
        out.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{stroke}" '
                   f'stroke-linejoin="round"/>')
    return "\n".join(out) + "\n</svg>\n"
