#include "millrace/history/report_html.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <optional>
#include <string_view>
#include <vector>

#include "millrace/base/text.h"

namespace millrace::history {
namespace {

/// Returns the text as HTML shows it, in elements and in attributes with quotation marks.
std::string Escaped(std::string_view text) {
  std::string html;
  const bool utf8 = IsValidUtf8(text);
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '&') {
      html += "&amp;";
    } else if (c == '<') {
      html += "&lt;";
    } else if (c == '>') {
      html += "&gt;";
    } else if (c == '"') {
      html += "&quot;";
    } else if (c == '\'') {
      html += "&#39;";
    } else if ((byte >= 0x80 && !utf8) || (byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7F) {
      html += "\xEF\xBF\xBD";  // U+FFFD
    } else {
      html += c;
    }
  }
  return html;
}

constexpr std::string_view kStyle = R"(
:root { color-scheme: light dark; --back: #fff; --card: #f6f7f9; --text: #1c2330; --dim: #5d6778; --line: #d5dae2;
  --blue: #2563c9; --green: #2e9e5b; --yellow: #c98a12; --magenta: #a23cb5; --red: #cf3b3b; }
@media (prefers-color-scheme: dark) { :root { --back: #14171c; --card: #1d2129; --text: #e6e9ef; --dim: #9aa4b5;
  --line: #363d49; --blue: #6ea3ff; --green: #5ccc8b; --yellow: #e8b44c; --magenta: #d68be5; --red: #ff7b7b; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 16px; max-width: 1160px; background: var(--back); color: var(--text);
  font: 15px/1.45 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.5em; margin: 0 0 2px; }
h2 { font-size: 1.05em; margin: 0 0 8px; }
p { margin: 4px 0; }
.dim { color: var(--dim); }
.bad { color: var(--red); }
.grid { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 340px), 1fr)); gap: 14px; margin-top: 14px; }
.tiles { grid-template-columns: repeat(auto-fit, minmax(130px, 1fr)); }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 12px; min-width: 0; }
.tile b { display: block; font-size: 1.25em; }
.wide { grid-column: 1 / -1; overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; overflow-wrap: normal; }
th, td { text-align: right; padding: 3px 8px; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
td.text { text-align: left; white-space: normal; min-width: 180px; }
svg { display: block; width: 100%; height: auto; }
svg text { font: 11px system-ui, sans-serif; fill: var(--dim); }
.axis { stroke: var(--line); stroke-width: 1; }
.series { fill: none; stroke-width: 1.6; stroke-linejoin: round; }
.key { display: inline-block; width: 10px; height: 10px; border-radius: 2px; margin-right: 5px; }
)";

std::string Span(double seconds) {
  return FormatDuration(std::chrono::duration_cast<Duration>(std::chrono::duration<double>(std::max(0.0, seconds))));
}

std::string TimeText(double seconds) {
  if (seconds <= 0) return "-";
  const auto since = std::chrono::duration_cast<WallTime::duration>(std::chrono::duration<double>(seconds));
  return FormatIso8601(WallTime(since)).substr(0, 19) + "Z";
}

struct ChartValue {
  double x = 0, y = 0;
};

/// The scale of an axis, never empty.
struct Range {
  double low = 0, high = 1;
};

Range RangeOf(const std::vector<ChartValue>& values) {
  const auto [low, high] = std::ranges::minmax_element(values, {}, &ChartValue::y);
  const double margin = high->y > low->y ? 0 : std::max(1e-12, std::abs(low->y) * 0.1);
  return {low->y - margin, high->y + margin};
}

std::string ShortNumber(double value) { return fmt::format("{:.4g}", value); }
std::string Thousands(double value) {
  if (value >= 1e6) return fmt::format("{:.3g}M", value / 1e6);
  return value >= 1e4 ? fmt::format("{:.3g}k", value / 1e3) : fmt::format("{:.0f}", value);
}
std::string Scientific(double value) { return fmt::format("{:.1e}", value); }

/// A line chart over steps, with a title in HTML. Empty if there are fewer than two values.
std::string LineChart(std::string_view title, const std::vector<ChartValue>& values, std::string_view colour,
                      std::string (*label)(double)) {
  constexpr double kWidth = 400, kHeight = 170, kLeft = 52, kRight = 8, kTop = 8, kBottom = 22;
  if (values.size() < 2) return "";
  const Range range = RangeOf(values);
  const double first = values.front().x, last = values.back().x;
  const auto x = [&](double step) { return kLeft + (step - first) / (last - first) * (kWidth - kLeft - kRight); };
  const auto y = [&](double value) {
    return kTop + (range.high - value) / (range.high - range.low) * (kHeight - kTop - kBottom);
  };
  std::string svg = fmt::format(R"(<div class="card"><h2>{}</h2><svg viewBox="0 0 {} {}" role="img" aria-label="{}">)",
                                title, kWidth, kHeight, title);
  for (const double share : {0.0, 0.5, 1.0}) {
    const double value = range.low + share * (range.high - range.low);
    svg += fmt::format(R"(<line class="axis" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>)", kLeft, kWidth - kRight,
                       y(value), y(value));
    svg += fmt::format(R"(<text x="{}" y="{:.1f}" text-anchor="end">{}</text>)", kLeft - 5, y(value) + 4, label(value));
  }
  svg += fmt::format(R"(<text x="{}" y="{}">step {}</text>)", kLeft, kHeight - 5,
                     FormatCount(static_cast<std::uint64_t>(first)));
  svg += fmt::format(R"(<text x="{}" y="{}" text-anchor="end">step {}</text>)", kWidth - kRight, kHeight - 5,
                     FormatCount(static_cast<std::uint64_t>(last)));
  svg += fmt::format(R"_(<polyline class="series" style="stroke:var(--{})" points=")_", colour);
  for (const ChartValue& value : values) svg += fmt::format("{:.1f},{:.1f} ", x(value.x), y(value.y));
  return svg + "\"/></svg></div>\n";
}

template <class Value>
std::vector<ChartValue> Series(const RunHistory& history, Value value) {
  std::vector<ChartValue> values;
  for (const ChartPoint& point : history.points()) {
    if (const std::optional<double> y = value(point)) values.push_back({static_cast<double>(point.last_step), *y});
  }
  return values;
}

struct TimePart {
  std::string_view name, colour;
  double seconds = 0;
};

std::array<TimePart, 4> PartsOf(const StepTimes& times) {
  const double waits = times.data_wait + times.comm_wait + times.checkpoint_wait;
  return {TimePart{"compute", "green", std::max(0.0, times.step - waits)}, TimePart{"data", "yellow", times.data_wait},
          TimePart{"communication", "magenta", times.comm_wait}, TimePart{"checkpoint", "red", times.checkpoint_wait}};
}

/// The shares of the steps' time over the run, stacked.
std::string TimeChart(const RunHistory& history) {
  constexpr double kWidth = 400, kHeight = 120;
  std::string bars;
  const auto& points = history.points();
  if (points.empty()) return "";
  const double width = kWidth / static_cast<double>(points.size());
  for (std::size_t i = 0; i < points.size(); ++i) {
    double below = 0;
    if (points[i].times.step <= 0) continue;
    for (const TimePart& part : PartsOf(points[i].times)) {
      const double height = std::clamp(part.seconds / points[i].times.step, 0.0, 1.0) * kHeight;
      if (height >= 0.05) {
        bars += fmt::format(R"_(<rect x="{:.2f}" y="{:.1f}" width="{:.2f}" height="{:.1f}" fill="var(--{})"/>)_",
                            static_cast<double>(i) * width, kHeight - below - height, width + 0.2, height, part.colour);
      }
      below += height;
    }
  }
  return fmt::format(
      R"(<svg viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="time of steps">{}</svg>)", kWidth,
      kHeight, bars);
}

std::string TimeCard(const RunHistory& history) {
  StepTimes sum;
  for (const ChartPoint& point : history.points()) sum.Add(point.times);
  if (sum.step <= 0) return "";
  std::string html = "<div class=\"card\"><h2>Where the time went (rank 0)</h2>" + TimeChart(history);
  for (const TimePart& part : PartsOf(sum)) {
    html += fmt::format(
        R"_(<p><span class="key" style="background:var(--{})"></span>{} {:.1f} % <span class="dim">{}</span>)_",
        part.colour, part.name, 100 * part.seconds / sum.step, Span(part.seconds));
    if (part.name == "data") {
      std::string stages;
      for (const auto& [stage, seconds] : sum.data_wait_on) {
        if (seconds >= 0.001 * sum.step) {
          stages += fmt::format("{}{} {:.1f} %", stages.empty() ? "" : ", ", Escaped(stage), 100 * seconds / sum.step);
        }
      }
      if (!stages.empty()) html += fmt::format(R"( <span class="dim">({})</span>)", stages);
    }
    html += "</p>";
  }
  return html + "</div>\n";
}

std::string Tile(std::string_view title, const std::string& value) {
  return fmt::format(R"(<div class="card tile"><span class="dim">{}</span><b>{}</b></div>)", title, Escaped(value));
}

std::string Tiles(const JobSummary& job, const RunHistory& history) {
  const RunFacts& facts = history.facts();
  std::uint64_t done = 0, tokens = 0;
  double flops = 0, seconds = 0;
  for (const ChartPoint& point : history.points()) {
    done = point.last_step;
    tokens += point.tokens;
    flops += point.flops;
    seconds += point.times.step;
  }
  std::string html = "<div class=\"grid tiles\">";
  html += Tile("steps", fmt::format("{} of {}", FormatCount(done), FormatCount(facts.steps)));
  const auto last = std::ranges::find_if(history.points().rbegin(), history.points().rend(),
                                         [](const ChartPoint& point) { return point.losses > 0; });
  if (last != history.points().rend()) html += Tile("loss", fmt::format("{:.4f}", last->loss));
  if (seconds > 0) {
    html += Tile("tokens/s", FormatCount(static_cast<std::uint64_t>(static_cast<double>(tokens) / seconds)));
    if (facts.flops_rate > 0) html += Tile("MFU", fmt::format("{:.0f} %", 100 * flops / seconds / facts.flops_rate));
    html += Tile("time in steps", Span(seconds));
  }
  html += Tile("tokens", FormatCount(tokens));
  html += Tile("ranks", FormatCount(static_cast<std::uint64_t>(facts.ranks)));
  if (facts.parameters > 0) html += Tile("parameters", FormatCount(facts.parameters));
  html += Tile("restarts", FormatCount(static_cast<std::uint64_t>(std::max(0, job.restarts))));
  return html + "</div>\n";
}

using Row = std::vector<std::string>;

/// The last cell is text and may break, if `text_last`. The cells are HTML.
std::string Table(std::string_view title, const Row& titles, const std::vector<Row>& rows, bool text_last = false) {
  if (rows.empty()) return "";
  std::string html = fmt::format("<div class=\"card wide\"><h2>{}</h2><table><tr>", title);
  for (std::size_t i = 0; i < titles.size(); ++i) {
    const bool text = text_last && i + 1 == titles.size();
    html += fmt::format("<th{}>{}</th>", text ? " style=\"text-align:left\"" : "", titles[i]);
  }
  html += "</tr>\n";
  for (const Row& row : rows) {
    html += "<tr>";
    for (std::size_t i = 0; i < row.size(); ++i) {
      html += fmt::format("<td{}>{}</td>", text_last && i + 1 == row.size() ? " class=\"text\"" : "", row[i]);
    }
    html += "</tr>\n";
  }
  return html + "</table></div>\n";
}

std::string RankTable(const JobSummary& job, const RunHistory& history) {
  std::vector<Row> rows;
  for (std::size_t i = 0; i < history.ranks().size(); ++i) {
    const RankFigures& rank = history.ranks()[i];
    const auto share = [&](double wait) {
      return rank.times.step > 0 ? fmt::format("{:.1f} %", 100 * wait / rank.times.step) : std::string("-");
    };
    const std::string node = i < job.ranks.size() ? Escaped(job.ranks[i].node) : "";
    rows.push_back({fmt::format("{}{}", i, rank.straggles ? " <span class=\"bad\">slow</span>" : ""),
                    node.empty() ? "-" : node, fmt::format("{:.3f} s", rank.times.step),
                    fmt::format("x{:.2f}", rank.slowness), share(rank.times.data_wait), share(rank.times.comm_wait),
                    share(rank.times.checkpoint_wait),
                    FormatBytes(rank.gpu_memory_bytes > 0 ? rank.gpu_memory_bytes : rank.memory_bytes),
                    fmt::format("{:.1f}", rank.busy_cores)});
  }
  return Table("Ranks, at their last report",
               {"rank", "node", "step", "beside its peers", "data", "comm.", "checkpoint", "memory", "cores"}, rows);
}

std::string CheckpointTable(const RunHistory& history) {
  std::vector<Row> rows;
  for (auto note = history.checkpoints().rbegin(); note != history.checkpoints().rend() && rows.size() < 20; ++note) {
    rows.push_back(
        {FormatCount(note->step), Escaped(note->tier), FormatBytes(note->bytes), Span(note->seconds),
         TimeText(note->time),
         note->error.empty() ? "committed" : fmt::format("<span class=\"bad\">{}</span>", Escaped(note->error))});
  }
  return Table("Checkpoints, the newest first", {"step", "tier", "bytes a rank", "took", "at", "result"}, rows, true);
}

std::string EvaluationTable(const RunHistory& history) {
  std::vector<Row> rows;
  for (auto note = history.evaluations().rbegin(); note != history.evaluations().rend() && rows.size() < 20; ++note) {
    std::string metrics;
    for (const auto& [name, value] : note->metrics) {
      metrics += fmt::format("{}{} {:.5g}", metrics.empty() ? "" : ", ", Escaped(name), value);
    }
    rows.push_back({FormatCount(note->step), metrics});
  }
  return Table("Evaluations, the newest first", {"step", "metrics"}, rows, true);
}

std::string MetricTable(const JobSummary& job) {
  std::vector<Row> rows;
  for (const auto& [name, series] : job.metrics.series()) {
    rows.push_back({Escaped(name), fmt::format("{:.6g}", series.latest), FormatCount(series.points.back().last_step)});
  }
  return Table("Metrics of the job file", {"metric", "latest", "step"}, rows);
}

std::string MetricCharts(const JobSummary& job) {
  std::string html;
  for (const auto& [name, series] : job.metrics.series()) {
    std::vector<ChartValue> values;
    for (const MetricPoint& point : series.points) {
      values.push_back({static_cast<double>(point.last_step), point.mean});
    }
    html += LineChart(Escaped(name), values, "blue", ShortNumber);
  }
  return html;
}

std::string StartTable(const RunHistory& history) {
  std::vector<Row> rows;
  for (const StartNote& note : history.starts()) {
    rows.push_back({TimeText(note.time), note.resumed_from > 0
                                             ? fmt::format("goes on after step {}", FormatCount(note.resumed_from))
                                             : std::string("from the beginning")});
  }
  return Table("Starts", {"at", "where"}, rows, true);
}

std::string EventTable(const JobSummary& job) {
  std::vector<Row> rows;
  for (auto event = job.events.rbegin(); event != job.events.rend() && rows.size() < 50; ++event) {
    rows.push_back({Escaped(event->time), Escaped(event->what), Escaped(event->sentence)});
  }
  return Table("Events, the newest first", {"at", "event", "what happened"}, rows, true);
}

}  // namespace

std::string ReportHtml(const JobSummary& job, const RunHistory& history, const std::string& written) {
  const std::string name = Escaped(job.name);
  std::string html = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
      "<title>{} – Millrace</title>\n<style>{}</style></head>\n<body>\n"
      "<h1>{}</h1>\n<p>{}{}</p>\n<p class=\"dim\">written {}</p>\n",
      name, kStyle, name, Escaped(job.state), job.message.empty() ? "" : ": " + Escaped(job.message), Escaped(written));
  html += Tiles(job, history);
  html += "<div class=\"grid\">\n";
  using Value = std::optional<double>;
  html += LineChart("Loss", Series(history, [](const ChartPoint& p) { return p.losses > 0 ? Value(p.loss) : Value(); }),
                    "blue", ShortNumber);
  html += LineChart("Tokens a second", Series(history, [](const ChartPoint& p) { return Value(p.tokens_per_s()); }),
                    "green", Thousands);
  html += LineChart("Learning rate", Series(history, [](const ChartPoint& p) { return Value(p.lr); }), "magenta",
                    Scientific);
  html += LineChart("Norm of the gradient", Series(history, [](const ChartPoint& p) { return Value(p.grad_norm); }),
                    "yellow", ShortNumber);
  html += MetricCharts(job);
  html += TimeCard(history);
  html += RankTable(job, history);
  html += EvaluationTable(history);
  html += MetricTable(job);
  html += CheckpointTable(history);
  html += StartTable(history);
  html += EventTable(job);
  return html + "</div>\n</body></html>\n";
}

}  // namespace millrace::history
