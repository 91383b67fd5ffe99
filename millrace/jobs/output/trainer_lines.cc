#include "millrace/jobs/output/trainer_lines.h"

#include <re2/re2.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "millrace/base/text.h"

namespace millrace::jobs {
namespace {

/// Returns a number without an exponent: expressions such as ([0-9.]*) find all of it.
std::string WithoutExponent(const Json& number) {
  if (!number.is_number_float()) return DumpJson(number);
  std::array<char, 400> digits{};  // the longest double has 309 digits before its point, or 324 zeros behind it
  const auto [end, error] =
      std::to_chars(digits.data(), digits.data() + digits.size(), number.get<double>(), std::chars_format::fixed);
  std::string text(digits.data(), end);
  return text.find('.') == std::string::npos ? text + ".0" : text;
}

std::string LineOf(const std::vector<std::pair<std::string, Json>>& values) {
  std::string line;
  for (const auto& [name, value] : values) {
    if (!value.is_number()) continue;
    line += fmt::format("{}'{}': {}", line.empty() ? "" : ", ", name, WithoutExponent(value));
  }
  return "{" + line + "}";
}

double Rounded(double value, double unit) { return std::round(value * unit) / unit; }

Json Number(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && std::isfinite(value) ? Json(value) : Json();
}

std::uint64_t Count(std::string text) {
  std::erase(text, ',');
  std::uint64_t count = 0;
  std::from_chars(text.data(), text.data() + text.size(), count);
  return count;
}

std::uint64_t CountOr0(const Json& object, std::string_view key) { return JsonUint(object, key).value_or(0); }

Json MemberOrNull(const Json& object, std::string_view key) {
  const Json* value = JsonFind(object, key);
  return value == nullptr ? Json() : *value;
}

}  // namespace

TrainerLine TrainerTranscript::Read(std::string_view line) {
  std::optional<TrainerLine> read = line.starts_with('{') ? ReadJson(line) : ReadText(line);
  return read ? *std::move(read) : TrainerLine{.text = std::string(line)};
}

std::optional<TrainerLine> TrainerTranscript::ReadJson(std::string_view line) {
  const auto found = ParseJson(line, "a line of rank 0");
  if (!found || !found->is_object()) return std::nullopt;
  const auto event = JsonString(*found, "event");
  const auto step = JsonUint(*found, "step");
  if (!event && step && JsonFind(*found, "loss") != nullptr) {
    return Step(*step, MemberOrNull(*found, "loss"), MemberOrNull(*found, "grad_norm"), MemberOrNull(*found, "lr"));
  }
  if (event && *event == "eval" && step) {
    Values metrics;
    for (const auto& [name, value] : found->items()) {
      if (name != "step" && name != "samples" && name != "labels" && name != "seconds") {
        metrics.emplace_back(name, value);
      }
    }
    return Evaluation(*step, std::move(metrics));
  }
  if (event && *event == "plan") {
    steps_per_epoch_ = CountOr0(*found, "steps_per_epoch");
    global_batch_ = CountOr0(*found, "global_batch");
    resumed_from_ = CountOr0(*found, "resumed_from");
    return TrainerLine{.text = std::string(line), .starts = true, .resumed_from = resumed_from_};
  }
  if (step) return TrainerLine{.text = std::string(line), .step = *step};
  return std::nullopt;
}

/// Reads what train::StepReport, EvalReport and Plan print as text.
std::optional<TrainerLine> TrainerTranscript::ReadText(std::string_view line) {
  static const re2::RE2 kStep(R"(step +(\d+)/\d+  loss (\S+)  .*lr (\S+)  grad (\S+) .*)");
  static const re2::RE2 kEvaluation(R"(eval after step (\d+)  loss (\S+) (.*))");
  static const re2::RE2 kMetric(R"( (perplexity|accuracy) (\S+))");
  static const re2::RE2 kSteps(R"(  steps     [\d,]+ in all, ([\d,]+) an epoch; ([\d,]+) samples a step .*)");
  static const re2::RE2 kResumed(R"(  goes on after step ([\d,]+))");
  const re2::StringPiece text(line.data(), line.size());
  std::string first, second, third, fourth;
  if (re2::RE2::FullMatch(text, kStep, &first, &second, &third, &fourth)) {
    return Step(Count(first), Number(second), Number(fourth), Number(third));
  }
  if (re2::RE2::FullMatch(text, kEvaluation, &first, &second, &third)) {
    Values metrics = {{"loss", Number(second)}};
    std::string name, value;
    for (re2::StringPiece rest(third); re2::RE2::FindAndConsume(&rest, kMetric, &name, &value);) {
      metrics.emplace_back(name, Number(value));
    }
    return Evaluation(Count(first), std::move(metrics));
  }
  TrainerLine read{.text = std::string(line)};
  if (line.starts_with("plan of ")) {
    resumed_from_ = 0;
    read.starts = true;
  } else if (re2::RE2::FullMatch(text, kSteps, &first, &second)) {
    steps_per_epoch_ = Count(first);
    global_batch_ = Count(second);
  } else if (re2::RE2::FullMatch(text, kResumed, &first)) {
    resumed_from_ = Count(first);
    read.resumed_from = resumed_from_;
  }
  return read;
}

TrainerLine TrainerTranscript::Step(std::uint64_t step, const Json& loss, const Json& grad_norm, const Json& rate) {
  step_ = step;
  if (loss.is_number()) {
    sum_of_losses_ += loss.get<double>();
    ++losses_;
  }
  return {
      .text = LineOf(
          {{"loss", loss}, {"grad_norm", grad_norm}, {"learning_rate", rate}, {"epoch", Epoch(step)}, {"step", step}}),
      .step = step};
}

TrainerLine TrainerTranscript::Evaluation(std::uint64_t step, Values metrics) const {
  for (auto& [name, value] : metrics) name = "eval_" + name;
  metrics.emplace_back("epoch", Epoch(step));
  metrics.emplace_back("step", step);
  return {.text = LineOf(metrics), .step = step};
}

std::optional<std::string> TrainerTranscript::Summary(Duration ran) const {
  if (step_ == 0) return std::nullopt;
  const double seconds = std::max(1e-3, std::chrono::duration<double>(ran).count());
  const auto steps = static_cast<double>(step_ - std::min(step_, resumed_from_));
  Values values = {{"train_runtime", Rounded(seconds, 1e4)},
                   {"train_samples_per_second", Rounded(steps * static_cast<double>(global_batch_) / seconds, 1e3)},
                   {"train_steps_per_second", Rounded(steps / seconds, 1e3)}};
  if (losses_ > 0) values.emplace_back("train_loss", Rounded(sum_of_losses_ / static_cast<double>(losses_), 1e6));
  values.emplace_back("epoch", Epoch(step_));
  return LineOf(values);
}

Json TrainerTranscript::Epoch(std::uint64_t step) const {
  if (steps_per_epoch_ == 0) return {};
  return Rounded(static_cast<double>(step) / static_cast<double>(steps_per_epoch_), 1e4);
}

}  // namespace millrace::jobs
