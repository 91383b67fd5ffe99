#!/usr/bin/env python3
"""Says what the GPU did during the steps of a program: products, attention, memory-bound kernels, optimizer, copies, idle.

    CUDA_INJECTION64_PATH=…/libcupti_trace.so MILLRACE_TRACE=trace.json build/gpu/bin/train_step …
    profile_steps.py trace.json [--steps 5] [--top 12] [--json]

A step ends with a run of the optimizer's kernels (their names have "adam"), and the last steps of the trace count. Without an
optimizer, it is the last half of the trace. Recording adds a little to each step, so speeds are measured without it.
"""
import argparse
import json
import re

# The first class whose pattern is in a kernel's name has it.
CLASSES = [
    ("attention", r"flash|fmha|sdpa|attention|attn|attendsplits|joinsplits"),
    ("optimizer", r"adam"),
    ("products", r"gemm|nvjet|xmma|cublas|cutlass|splitk|gemv|wgmma|fewrows|^triton_tem"),
    ("copies", r"^copy |^fill$|memcpy|memset"),
    ("memory-bound", r""),
]


def class_of(name):
    return next(label for label, pattern in CLASSES if re.search(pattern, name, re.IGNORECASE))


def busy(intervals):
    """Returns how much time the union of intervals has, in their order of beginning."""
    total, until = 0, 0
    for start, end in intervals:
        total += max(0, end - max(start, until))
        until = max(until, end)
    return total


def step_windows(events, classes):
    """Returns where each step begins and ends: from the end of one step's optimizer to that of the next."""
    ends, last = [], None
    for name, _, _, end, _ in events:
        if classes[name] == "optimizer":
            last = end if last is None else max(last, end)
        elif last is not None and classes[name] != "copies":
            ends.append(last)
            last = None
    if last is not None:
        ends.append(last)
    return list(zip(ends, ends[1:]))


def steady_window(events, classes, steps):
    """Returns the beginning, the end and the number of the steps that count."""
    windows = step_windows(events, classes)
    if not windows:
        begin, end = events[0][2], max(event[3] for event in events)
        return (begin + end) // 2, end, 1
    # A clipped gradient norm or a learning rate may be computed between two parts of the optimizer: such a window is far
    # shorter than a step.
    longest = max(end - begin for begin, end in windows[len(windows) // 2:])
    windows = [window for window in windows if window[1] - window[0] > longest / 4][-steps:]
    return windows[0][0], windows[-1][1], len(windows)


def summarize(trace, steps, top):
    names, events = trace["names"], sorted(trace["events"], key=lambda event: event[2])
    classes = [class_of(name) for name in names]
    begin, end, count = steady_window(events, classes, steps)
    events = [event for event in events if begin <= event[2] and event[3] <= end]
    by_class = {label: [] for label, _ in CLASSES}
    by_name = {}
    for event in events:
        by_class[classes[event[0]]].append(event)
        by_name.setdefault(event[0], []).append(event[3] - event[2])
    window = end - begin
    rows = [{"class": label, "ms": sum(e[3] - e[2] for e in found) / count / 1e6, "share": sum(e[3] - e[2] for e in found) / window,
             "launches": round(len(found) / count)} for label, found in by_class.items()]
    idle = window - busy([(event[2], event[3]) for event in events])
    rows.append({"class": "idle", "ms": idle / count / 1e6, "share": idle / window, "launches": 0})
    kernels = sorted(by_name.items(), key=lambda item: -sum(item[1]))[:top]
    return {"steps": count, "step_ms": window / count / 1e6, "classes": rows,
            "kernels": [{"name": names[name], "class": classes[name], "ms": sum(times) / count / 1e6,
                         "launches": round(len(times) / count, 1)} for name, times in kernels]}


def markdown(summary):
    lines = [f"{summary['step_ms']:.2f} ms a step, {summary['steps']} steps", "", "| class | ms a step | share | launches |",
             "|---|---|---|---|"]
    lines += [f"| {r['class']} | {r['ms']:.3f} | {r['share']:.1%} | {r['launches']} |" for r in summary["classes"]]
    lines += ["", "| kernel | class | ms a step | launches |", "|---|---|---|---|"]
    lines += [f"| `{k['name'][:90].replace('|', '/')}` | {k['class']} | {k['ms']:.3f} | {k['launches']:g} |" for k in summary["kernels"]]
    return "\n".join(lines)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("trace")
    p.add_argument("--steps", type=int, default=5)
    p.add_argument("--top", type=int, default=12)
    p.add_argument("--json", action="store_true")
    o = p.parse_args()
    with open(o.trace, encoding="utf-8") as file:
        trace = json.load(file)
    if not trace["events"]:
        raise SystemExit(f"{o.trace}: the program ran nothing on the GPU")
    summary = summarize(trace, o.steps, o.top)
    print(json.dumps(summary) if o.json else markdown(summary))


if __name__ == "__main__":
    main()
