#include "millrace/history/top_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <map>
#include <optional>
#include <span>
#include <string_view>

#include "millrace/base/text.h"

namespace millrace::history {
namespace {

/// Text in one colour.
struct Segment {
  enum class Colour { kPlain, kBold, kDim, kRed, kGreen, kYellow, kBlue, kMagenta };
  std::string text;
  Colour colour = Colour::kPlain;
};
using Colour = Segment::Colour;
using Line = std::vector<Segment>;

constexpr std::string_view kReset = "\x1b[0m";

std::string_view CodeOf(Colour colour) {
  constexpr std::array<std::string_view, 8> kCodes = {"",         "\x1b[1m",  "\x1b[2m",  "\x1b[31m",
                                                      "\x1b[32m", "\x1b[33m", "\x1b[34m", "\x1b[35m"};
  return kCodes[static_cast<std::size_t>(colour)];
}

bool IsContinuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

/// Returns the number of code points; each takes one column.
std::size_t Columns(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count_if(text, [](char c) { return !IsContinuation(c); }));
}

std::string_view FirstColumns(std::string_view text, std::size_t columns) {
  std::size_t seen = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (!IsContinuation(text[i]) && seen++ == columns) return text.substr(0, i);
  }
  return text;
}

/// Names and messages come from files: anything but printable ASCII and well-formed UTF-8 becomes '?'.
std::string Printable(std::string_view text) {
  const bool utf8 = IsValidUtf8(text);
  std::string clean;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    const bool c1 = c == 0xC2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xA0;
    if (c1) ++i;
    clean += c < 0x20 || c == 0x7F || c1 || (c >= 0x80 && !utf8) ? '?' : text[i];
  }
  return clean;
}

std::string Drawn(const Line& line, const ViewSize& size) {
  std::string text;
  std::size_t left = static_cast<std::size_t>(std::max(1, size.width));
  for (const Segment& segment : line) {
    const std::string_view part = FirstColumns(segment.text, left);
    left -= Columns(part);
    const std::string_view code = size.colours ? CodeOf(segment.colour) : "";
    text += fmt::format("{}{}{}", code, part, code.empty() ? "" : kReset);
  }
  return text;
}

std::string Interval(double seconds) {
  return FormatDuration(std::chrono::duration_cast<Duration>(std::chrono::duration<double>(std::max(0.0, seconds))));
}

Colour ColourOf(std::string_view state) {
  if (state == "running" || state == "done") return Colour::kGreen;
  if (state == "failed" || state == "lost") return Colour::kRed;
  return Colour::kYellow;
}

std::uint64_t StepsDone(const JobSummary& job, const RunHistory& history) {
  std::uint64_t step = history.latest() ? history.latest()->last_step : 0;
  if (step == 0 && !history.points().empty()) step = history.points().back().last_step;
  for (const JobSummary::Rank& rank : job.ranks) step = std::max(step, rank.step.value_or(0));
  return step;
}

/// Returns the time that is left, from the speed of the last steps.
std::optional<double> SecondsLeft(const JobSummary& job, const RunHistory& history) {
  constexpr std::uint64_t kLastSteps = 50;  // enough to even out the steps that wait for checkpoints
  const std::uint64_t done = StepsDone(job, history);
  if (job.state != "running" || history.facts().steps <= done || history.points().empty()) return std::nullopt;
  double seconds = 0;
  std::uint64_t steps = 0;
  for (auto point = history.points().rbegin(); point != history.points().rend() && steps < kLastSteps; ++point) {
    seconds += point->times.step;
    steps += point->steps();
  }
  return seconds / static_cast<double>(steps) * static_cast<double>(history.facts().steps - done);
}

Line TitleLine(const JobSummary& job, const RunHistory& history) {
  const std::uint64_t done = StepsDone(job, history), steps = history.facts().steps;
  Line line = {{Printable(job.name), Colour::kBold}, {"  "}, {Printable(job.state), ColourOf(job.state)}};
  line.push_back({fmt::format("  step {}", FormatCount(done))});
  if (steps > 0) {
    line.push_back({fmt::format(" of {} ({:.0f} %)", FormatCount(steps),
                                100 * static_cast<double>(done) / static_cast<double>(steps))});
  }
  if (const auto left = SecondsLeft(job, history)) line.push_back({fmt::format("  {} left", Interval(*left))});
  if (job.restarts > 0) {
    line.push_back({fmt::format("  {} restart{}", job.restarts, job.restarts == 1 ? "" : "s"), Colour::kYellow});
  }
  return line;
}

/// The speed of the latest step, or of the last ones before a restart.
const ChartPoint* Shown(const RunHistory& history) {
  if (history.latest()) return &*history.latest();
  return history.points().empty() ? nullptr : &history.points().back();
}

Line SpeedLine(const RunHistory& history) {
  const ChartPoint* point = Shown(history);
  if (point == nullptr) return {{"no step was reported yet", Colour::kDim}};
  Line line = {{fmt::format("{} tok/s  step {}", FormatCount(static_cast<std::uint64_t>(point->tokens_per_s())),
                            Interval(point->times.step / static_cast<double>(point->steps())))}};
  if (const auto utilization = history.Utilization(*point)) {
    line.push_back({fmt::format("  MFU {:.0f} %", 100 * *utilization)});
  }
  line.push_back({fmt::format("  lr {:.2e}  grad {:.3f}", point->lr, point->grad_norm)});
  return line;
}

Line LossLine(const RunHistory& history, const ViewSize& size) {
  std::vector<double> losses;
  for (const ChartPoint& point : history.points()) {
    if (point.losses > 0) losses.push_back(point.loss);
  }
  if (losses.empty()) return {};
  const std::string label = fmt::format("loss {:.4f} ", losses.back());
  const int room = size.width - static_cast<int>(label.size());
  return {{label}, {Sparkline(losses, static_cast<std::size_t>(std::clamp(room, 0, 60))), Colour::kBlue}};
}

/// The latest values of the metrics that the job file defines.
Line MetricsLine(const JobSummary& job) {
  Line line;
  for (const auto& [name, series] : job.metrics.series()) {
    line.push_back({fmt::format("{}{} ", line.empty() ? "" : "  ", Printable(name)), Colour::kDim});
    line.push_back({fmt::format("{:.6g}", series.latest)});
  }
  return line;
}

/// The shares of a step, as a bar and in words.
Line TimeLine(const RunHistory& history, const ViewSize& size) {
  const ChartPoint* point = Shown(history);
  if (point == nullptr || point->times.step <= 0) return {};
  const StepTimes& times = point->times;
  const auto share = [&](double seconds) { return std::clamp(seconds / times.step, 0.0, 1.0); };
  const double waits = share(times.data_wait) + share(times.comm_wait) + share(times.checkpoint_wait);
  struct Part {
    std::string_view name;
    double share;
    Colour colour;
  };
  const std::array<Part, 4> parts = {
      Part{"compute", std::max(0.0, 1 - waits), Colour::kGreen}, Part{"data", share(times.data_wait), Colour::kYellow},
      Part{"comm", share(times.comm_wait), Colour::kMagenta}, Part{"ckpt", share(times.checkpoint_wait), Colour::kRed}};
  Line line = {{"time "}};
  const double bar = size.width >= 92 ? 20 : 10;
  constexpr std::array<std::string_view, 4> kFill = {"█", "▓", "▒", "░"};
  for (std::size_t i = 0; i < parts.size(); ++i) {
    std::string fill;
    for (int n = static_cast<int>(std::round(parts[i].share * bar)); n > 0; --n) fill += kFill[i];
    line.push_back({std::move(fill), parts[i].colour});
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    line.push_back({fmt::format("  {} ", kFill[i]), parts[i].colour});
    line.push_back({fmt::format("{} {:.0f} %", parts[i].name, 100 * parts[i].share)});
    const auto most = std::ranges::max_element(times.data_wait_on, {}, [](const auto& stage) { return stage.second; });
    if (i == 1 && parts[i].share >= 0.005 && most != times.data_wait_on.end() && most->second > 0) {
      line.push_back({fmt::format(" ({})", Printable(most->first))});
    }
  }
  return line;
}

Line CheckpointLine(const RunHistory& history, double now) {
  if (history.checkpoints().empty()) {
    return {{history.facts().checkpoint_url.empty() ? "no checkpoints are made" : "no checkpoint yet", Colour::kDim}};
  }
  const CheckpointNote& last = history.checkpoints().back();
  if (!last.error.empty()) return {{"checkpoint failed: " + Printable(last.error), Colour::kRed}};
  return {
      {fmt::format("checkpoint of step {} ({}), {} a rank in {}, {} ago", FormatCount(last.step), Printable(last.tier),
                   FormatBytes(last.bytes), Interval(last.seconds), Interval(now - last.time))}};
}

/// A column of the table of ranks.
struct Column {
  std::string_view title;
  int width;
  int from;  ///< the column is shown from this width of the terminal on
};
constexpr std::array<Column, 12> kCpuColumns = {
    Column{"RANK", 4, 0},   Column{"STATE", 14, 24}, Column{"STEP", 9, 36},   Column{"STEP S", 8, 46},
    Column{"OWN S", 8, 56}, Column{"DATA", 5, 64},   Column{"COMM", 5, 71},   Column{"CKPT", 5, 78},
    Column{"MEM", 9, 88},   Column{"CPU", 5, 96},    Column{"NODE", 16, 114}, Column{"PID", 8, 124}};
/// The columns of a job whose ranks have GPUs that tell their load.
constexpr std::array<Column, 15> kGpuColumns = {
    Column{"RANK", 4, 0},   Column{"STATE", 14, 24}, Column{"STEP", 9, 36},  Column{"STEP S", 8, 46},
    Column{"OWN S", 8, 56}, Column{"DATA", 5, 64},   Column{"COMM", 5, 71},  Column{"CKPT", 5, 78},
    Column{"MEM", 9, 88},   Column{"GPU", 5, 94},    Column{"TEMP", 5, 100}, Column{"POWER", 6, 107},
    Column{"CPU", 5, 113},  Column{"NODE", 16, 130}, Column{"PID", 8, 139}};

std::span<const Column> ColumnsOf(const RunHistory& history) {
  const bool gpus = std::ranges::any_of(history.ranks(), [](const RankFigures& rank) { return rank.gpu.any(); });
  return gpus ? std::span<const Column>(kGpuColumns) : std::span<const Column>(kCpuColumns);
}

std::string Cell(std::string_view text, const Column& column, bool left) {
  const std::string_view cut = FirstColumns(text, static_cast<std::size_t>(column.width));
  const std::string padding(static_cast<std::size_t>(column.width) - Columns(cut), ' ');
  return left ? std::string(cut) + padding : padding + std::string(cut);
}

bool IsLeft(std::string_view title) { return title == "STATE" || title == "NODE"; }

Line RankTitles(const RunHistory& history, const ViewSize& size) {
  std::string text;
  for (const Column& column : ColumnsOf(history)) {
    if (size.width < column.from) continue;
    text += (text.empty() ? "" : " ") + Cell(column.title, column, IsLeft(column.title));
  }
  return {{text, Colour::kBold}};
}

std::size_t RankCount(const JobSummary& job, const RunHistory& history) {
  return std::max(job.ranks.size(), history.ranks().size());
}

Line RankLine(const JobSummary& job, const RunHistory& history, std::size_t index, const ViewSize& size) {
  const JobSummary::Rank process = index < job.ranks.size() ? job.ranks[index] : JobSummary::Rank{};
  const bool known = index < history.ranks().size();
  const RankFigures figures = known ? history.ranks()[index] : RankFigures{};
  const StepTimes& times = figures.times;
  const std::uint64_t memory = figures.gpu_memory_bytes > 0 ? figures.gpu_memory_bytes : figures.memory_bytes;
  const auto share = [&](double wait) {
    return known && times.step > 0 ? fmt::format("{:.0f} %", 100 * wait / times.step) : std::string("-");
  };
  const auto seconds = [&](double value) { return known ? fmt::format("{:.3f}", value) : std::string("-"); };
  std::string state = figures.straggles ? fmt::format("slow x{:.1f}", figures.slowness) : Printable(process.state);
  if (state.empty()) state = known ? "reports" : "-";
  const auto gpu = [](const std::optional<double>& value, double factor, std::string_view unit) {
    return value ? fmt::format("{:.0f} {}", *value * factor, unit) : std::string("-");
  };
  const std::map<std::string_view, std::string> cells = {
      {"RANK", std::to_string(index)},
      {"STATE", std::move(state)},
      {"STEP", process.step ? FormatCount(*process.step) : "-"},
      {"STEP S", seconds(times.step)},
      {"OWN S", seconds(std::max(0.0, times.step - times.comm_wait))},
      {"DATA", share(times.data_wait)},
      {"COMM", share(times.comm_wait)},
      {"CKPT", share(times.checkpoint_wait)},
      {"MEM", known ? FormatBytes(memory) : "-"},
      {"GPU", gpu(figures.gpu.utilization, 100, "%")},
      {"TEMP", gpu(figures.gpu.celsius, 1, "°C")},
      {"POWER", gpu(figures.gpu.watts, 1, "W")},
      {"CPU", known ? fmt::format("{:.1f}", figures.busy_cores) : "-"},
      {"NODE", process.node.empty() ? "-" : Printable(process.node)},
      {"PID", process.pid > 0 ? std::to_string(process.pid) : "-"}};
  std::string text;
  for (const Column& column : ColumnsOf(history)) {
    if (size.width < column.from) continue;
    text += (text.empty() ? "" : " ") + Cell(cells.at(column.title), column, IsLeft(column.title));
  }
  const bool failed = !process.state.empty() && process.state != "running" && process.state != "starting" &&
                      process.state != "exit status 0";
  return {{text, failed ? Colour::kRed : figures.straggles ? Colour::kYellow : Colour::kPlain}};
}

std::vector<Line> HeadLines(const JobSummary& job, const RunHistory& history, double now, const ViewSize& size) {
  std::vector<Line> lines = {TitleLine(job, history), SpeedLine(history)};
  for (Line line : {LossLine(history, size), MetricsLine(job), TimeLine(history, size), CheckpointLine(history, now)}) {
    if (!line.empty()) lines.push_back(std::move(line));
  }
  std::string slow;
  for (std::size_t i = 0; i < history.ranks().size(); ++i) {
    const RankFigures& rank = history.ranks()[i];
    if (rank.straggles) slow += fmt::format("{}rank {} (x{:.1f})", slow.empty() ? "" : ", ", i, rank.slowness);
  }
  if (!slow.empty()) lines.push_back({{"slower than its peers: " + slow, Colour::kYellow}});
  if (!job.message.empty()) lines.push_back({{Printable(job.message.substr(0, job.message.find('\n'))), Colour::kDim}});
  lines.push_back({});
  lines.push_back(RankTitles(history, size));
  return lines;
}

/// Returns how many lines are left for ranks.
std::size_t RoomForRanks(std::size_t head, std::size_t ranks, const ViewSize& size) {
  if (size.height <= 0) return ranks;
  const auto height = static_cast<std::size_t>(size.height);
  const std::size_t taken = head + (size.keys ? 1 : 0);
  return std::min(ranks, height > taken ? height - taken : 0);
}

}  // namespace

std::string Sparkline(const std::vector<double>& values, std::size_t width) {
  constexpr std::array<std::string_view, 8> kBlocks = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  if (values.empty() || width == 0) return "";
  const std::size_t columns = std::min(width, values.size());
  std::vector<double> means;
  for (std::size_t c = 0; c < columns; ++c) {
    const std::size_t begin = c * values.size() / columns, end = (c + 1) * values.size() / columns;
    double sum = 0;
    for (std::size_t i = begin; i < end; ++i) sum += values[i];
    means.push_back(sum / static_cast<double>(end - begin));
  }
  const auto [low, high] = std::ranges::minmax(means);
  std::string text;
  for (const double mean : means) {
    const double level = high > low ? (mean - low) / (high - low) : 0;
    text += kBlocks[std::min(kBlocks.size() - 1, static_cast<std::size_t>(level * kBlocks.size()))];
  }
  return text;
}

std::vector<std::string> DrawTop(const JobSummary& job, const RunHistory& history, double now, const ViewSize& size) {
  std::vector<Line> lines = HeadLines(job, history, now, size);
  const std::size_t ranks = RankCount(job, history);
  const std::size_t shown = RoomForRanks(lines.size(), ranks, size);
  const std::size_t first = std::min(size.first, ranks - shown);
  for (std::size_t i = first; i < first + shown; ++i) lines.push_back(RankLine(job, history, i, size));
  if (size.height > 0) {
    const auto height = static_cast<std::size_t>(size.height);
    const std::size_t body = size.keys ? height - 1 : height;
    lines.resize(size.keys ? body : std::min(lines.size(), body));
    if (size.keys) {
      const std::string where =
          shown < ranks && shown > 0 ? fmt::format("  ranks {} to {} of {}", first, first + shown - 1, ranks) : "";
      lines.push_back({{fmt::format("q quit  up, down, PgUp, PgDn scroll{}", where), Colour::kDim}});
    }
  }
  std::vector<std::string> drawn;
  for (const Line& line : lines) drawn.push_back(Drawn(line, size));
  return drawn;
}

std::size_t RanksShown(const JobSummary& job, const RunHistory& history, const ViewSize& size) {
  return RoomForRanks(HeadLines(job, history, 0, size).size(), RankCount(job, history), size);
}

Json TopToJson(const JobSummary& job, const RunHistory& history, double now) {
  Json json = {{"name", job.name},
               {"state", job.state},
               {"message", job.message},
               {"restarts", job.restarts},
               {"step", StepsDone(job, history)},
               {"steps", history.facts().steps}};
  if (const auto left = SecondsLeft(job, history)) json["seconds_left"] = *left;
  if (const ChartPoint* point = Shown(history)) {
    const double steps = static_cast<double>(point->steps());
    json.update({{"loss", point->losses > 0 ? Json(point->loss) : Json()},
                 {"lr", point->lr},
                 {"grad_norm", point->grad_norm},
                 {"tokens_per_s", point->tokens_per_s()},
                 {"step_s", point->times.step / steps},
                 {"data_wait_s", point->times.data_wait / steps},
                 {"comm_wait_s", point->times.comm_wait / steps},
                 {"checkpoint_wait_s", point->times.checkpoint_wait / steps}});
    if (const auto utilization = history.Utilization(*point)) json["mfu"] = *utilization;
  }
  if (!history.checkpoints().empty()) {
    const CheckpointNote& last = history.checkpoints().back();
    json["checkpoint"] = {{"step", last.step},       {"tier", last.tier},        {"bytes", last.bytes},
                          {"seconds", last.seconds}, {"age_s", now - last.time}, {"failed", !last.error.empty()}};
  }
  if (!job.metrics.series().empty()) {
    Json metrics = Json::object();
    for (const auto& [name, series] : job.metrics.series()) metrics[name] = series.latest;
    json["metrics"] = std::move(metrics);
  }
  json["ranks"] = Json::array();
  const Json all = history.ToJson();
  for (std::size_t i = 0; i < RankCount(job, history); ++i) {
    Json rank = {{"rank", i}};
    if (i < job.ranks.size()) {
      rank.update({{"state", job.ranks[i].state}, {"pid", job.ranks[i].pid}, {"node", job.ranks[i].node}});
      if (job.ranks[i].step) rank["step"] = *job.ranks[i].step;
    }
    if (i < history.ranks().size()) rank.update(all["ranks"][i]);
    json["ranks"].push_back(std::move(rank));
  }
  return json;
}

}  // namespace millrace::history
