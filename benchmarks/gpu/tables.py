"""Makes the tables of `run` out of its results: ours, each peer, the ratio, the goal."""
import profile_steps
from stages import WORKS


def latest(results):
    """Returns a result for each work and program: of the rounds of its last command, the one with the median speed."""
    groups = {}
    for result in results:
        groups.setdefault((result["work"], result["program"]), []).append(result)
    found = {}
    for name, group in groups.items():
        rounds = {r["round"]: r for r in group if r["command"] == group[-1]["command"]}
        good = [r for r in rounds.values() if "result" in r]
        if good and group[-1]["kind"] == "speed" and name[0] in WORKS:
            metric = WORKS[name[0]].metric
            good.sort(key=lambda r: r["result"][metric])
            found[name] = good[len(good) // 2] | {"rounds": len(good)}
        else:
            found[name] = group[-1]
    return found


def figure(result):
    values = result["result"]
    value, mfu, memory = values[WORKS[result["work"]].metric], values.get("mfu"), values.get("peak_gib")
    text = f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
    if mfu:
        text += f", {mfu:.1%} MFU"
    if memory:
        text += f", {memory:.1f} GiB"
    notes = [" ".join(result.get("fallback", ())), f"{result['layers']} layers" if result.get("layers") else "",
             f"median of {result['rounds']} runs" if result.get("rounds", 1) > 1 else ""]
    notes = ", ".join(filter(None, notes))
    return text + (f" ({notes})" if notes else "")


def spread(result):
    r = result["result"]
    if not r.get("step_s_min"):
        return ""
    clock = f", {result['sm_mhz']:.0f} MHz, {result['watts']:.0f} W" if "sm_mhz" in result else ""
    return f"{r['step_s'] * 1e3:.1f} ms ({r['step_s_min'] * 1e3:.1f} to {r['step_s_max'] * 1e3:.1f}){clock}"


def speed_rows(found):
    for work, about in WORKS.items():
        rows = [result for (name, program), result in found.items() if name == work and result["kind"] == "speed"]
        own = next((r for r in rows if r["program"] == "Millrace" and "result" in r), None)
        for i, result in enumerate(rows):
            title, goal = (about.title, about.goal) if i == 0 else ("", "")
            if "error" in result:
                yield f"| {title} | {result['program']} | {result['error']} | | | {goal} |"
                continue
            ratio = ""
            if own and result is not own:
                ratio = f"{own['result'][about.metric] / result['result'][about.metric]:.2f}×"
            yield f"| {title} | {result['program']} | {figure(result)} | {spread(result)} | {ratio} | {goal} |"


def machine_lines(results):
    machines = {tuple(sorted(result["machine"].items())) for result in results if result.get("machine")}
    return ["- " + ", ".join(f"{key} {value}" for key, value in machine) for machine in sorted(machines)]


def markdown(results):
    found = latest(results)
    lines = ["# Millrace beside PyTorch on a GPU", "", *machine_lines(results), ""]
    ceilings = found.get(("ceilings", "torch"), {}).get("result")
    if ceilings:
        lines += [f"Ceilings: {ceilings['product_tflops']:.0f} TFLOP/s in a product of 8,192 squared, "
                  f"{ceilings['copy_gb_per_s']:,.0f} GB/s in a copy.", ""]
    tests = [result for result in found.values() if result["kind"] == "test"]
    if tests:
        lines += ["| tests | outcome |", "|---|---|"]
        lines += [f"| {t['program']} | {t.get('error') or t['result']['outcome']} |" for t in tests] + [""]
    rows = list(speed_rows(found))
    if rows:
        lines += ["| work | program | tokens/s | step: median (range), clock, power | Millrace is faster by | goal |", "|---|---|---|---|---|---|",
                  *rows, ""]
    for (_, program), result in found.items():
        if result["kind"] == "text":
            lines += [f"## {program}", "", "    " + (result.get("error") or result["result"]["text"]).strip().replace("\n", "\n    "), ""]
        if result["kind"] == "profile":
            lines += [f"## {WORKS[result['work']].title}: {program}", "",
                      result["error"] if "error" in result else profile_steps.markdown(result["profile"]), ""]
    return "\n".join(lines)
