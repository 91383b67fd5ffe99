#include "millrace/train/reporting/report.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/base/text.h"

namespace millrace::train {

Json NineDigits(double value) {
  const std::string text = fmt::format("{:.9g}", value);
  double rounded = value;
  std::from_chars(text.data(), text.data() + text.size(), rounded);
  return rounded;
}

namespace {

Json Seconds(double value) { return std::max(0.0, std::round(value * 1e6) / 1e6); }

}  // namespace

Json Plan::ToJson() const {
  return {{"event", "plan"},
          {"name", name},
          {"ranks", ranks},
          {"data", shape.replica * shape.shard},
          {"shard", shape.shard},
          {"tensor", shape.tensor},
          {"sequence", parallel.sequence && shape.tensor > 1},
          {"pipeline", shape.pipeline},
          {"schedule", engine::PipelineScheduleName(parallel.schedule)},
          {"virtual_stages", parallel.virtual_stages},
          {"zero", parallel.zero},
          {"recompute", engine::RecomputeName(parallel.recompute)},
          {"precision", precision},
          {"device", device},
          {"records", records},
          {"data_bytes", data_bytes},
          {"samples_per_epoch", samples_per_epoch},
          {"tokens_per_epoch", tokens_per_epoch},
          {"steps_per_epoch", steps_per_epoch},
          {"steps", steps},
          {"resumed_from", resumed_from},
          {"last_step", last_step},
          {"global_batch", global_batch},
          {"micro_batch", micro_batch},
          {"accumulation", accumulation},
          {"sequence_length", sequence_length},
          {"parameters", parameters},
          {"flops_per_token", flops_per_token},
          {"memory_bytes", memory_bytes},
          {"checkpoint", checkpoint_url}};
}

namespace {

/// "data 2 (zero 1) × pipeline 2 (1f1b) × tensor 2 (sequence)". One rank along an axis is not told.
std::string Layout(const Plan& plan) {
  const engine::MeshShape& shape = plan.shape;
  const engine::ParallelOptions& parallel = plan.parallel;
  std::vector<std::string> axes;
  const int data = shape.replica * shape.shard;
  if (data > 1) {
    std::string text = fmt::format("data {}", data);
    if (parallel.zero > 0 && shape.replica > 1) {
      text += fmt::format(" (zero {} in groups of {})", parallel.zero, shape.shard);
    } else if (parallel.zero > 0) {
      text += fmt::format(" (zero {})", parallel.zero);
    }
    axes.push_back(std::move(text));
  }
  if (shape.pipeline > 1) {
    const std::string stages =
        parallel.virtual_stages > 1 ? fmt::format(", {} stages each", parallel.virtual_stages) : "";
    axes.push_back(
        fmt::format("pipeline {} ({}{})", shape.pipeline, engine::PipelineScheduleName(parallel.schedule), stages));
  }
  if (shape.tensor > 1)
    axes.push_back(fmt::format("tensor {}{}", shape.tensor, parallel.sequence ? " (sequence)" : ""));
  std::string text = axes.empty() ? "one rank" : fmt::format("{}", fmt::join(axes, " × "));
  if (parallel.recompute != engine::Recompute::kNone) {
    text += fmt::format(", recompute {}", engine::RecomputeName(parallel.recompute));
  }
  return text;
}

}  // namespace

std::string Plan::ToText() const {
  std::string text = fmt::format(
      "plan of {}\n"
      "  data      {} records, {}: {} samples of {} tokens an epoch\n"
      "  steps     {} in all, {} an epoch; {} samples a step ({} tokens)\n"
      "  model     {} parameters in {}{}, {:.1f} MFLOP a token\n"
      "  layout    {}, {} micro-batch{} of {} each\n"
      "  memory    about {} a rank\n",
      name, FormatCount(records), FormatBytes(data_bytes), FormatCount(samples_per_epoch), sequence_length,
      FormatCount(steps), FormatCount(steps_per_epoch), global_batch,
      FormatCount(static_cast<std::uint64_t>(global_batch) * static_cast<std::uint64_t>(sequence_length)),
      FormatCount(static_cast<std::uint64_t>(parameters)), precision, device == "cpu" ? "" : " on " + device,
      flops_per_token / 1e6, Layout(*this), accumulation, accumulation == 1 ? "" : "es", micro_batch,
      FormatBytes(memory_bytes));
  text += checkpoint_url.empty() ? "  no checkpoints\n" : fmt::format("  checkpoints to {}\n", checkpoint_url);
  if (resumed_from > 0) text += fmt::format("  goes on after step {}\n", FormatCount(resumed_from));
  if (last_step < steps) text += fmt::format("  this run ends after step {}\n", FormatCount(last_step));
  return text;
}

namespace {

/// Returns the longest of the waits and its share of the step's time, such as "  data 20 %"; "" below 1 %.
std::string LongestWait(const StepReport& report) {
  const auto [seconds, name] = std::max({std::pair(report.data_wait_s, "data"), std::pair(report.comm_wait_s, "comm"),
                                         std::pair(report.checkpoint_wait_s, "ckpt")});
  const double percent = report.step_s > 0 ? 100 * seconds / report.step_s : 0;
  return percent >= 1 ? fmt::format("  {} {:.0f} %", name, percent) : "";
}

}  // namespace

void StepInterval::Add(const StepReport& report) {
  const StepReport before = std::exchange(sums_, report);
  if (before.step == 0) return;
  sums_.averaged += before.averaged;
  sums_.step_s += before.step_s;
  sums_.data_wait_s += before.data_wait_s;
  for (int s = 0; s < data::kLoadStages; ++s) sums_.data_wait_on_s[s] += before.data_wait_on_s[s];
  sums_.comm_wait_s += before.comm_wait_s;
  sums_.checkpoint_wait_s += before.checkpoint_wait_s;
  sums_.flops_per_token += before.flops_per_token;
}

StepReport StepInterval::TakeMeans() {
  StepReport means = std::exchange(sums_, {});
  const double steps = static_cast<double>(means.averaged);
  for (double* sum :
       {&means.step_s, &means.data_wait_s, &means.comm_wait_s, &means.checkpoint_wait_s, &means.flops_per_token}) {
    *sum /= steps;
  }
  for (double& sum : means.data_wait_on_s) sum /= steps;
  return means;
}

Json StepReport::ToJson() const {
  Json waited_on;
  for (int s = 0; s < data::kLoadStages; ++s) {
    waited_on[std::string(data::LoadStageName(static_cast<data::LoadStage>(s)))] = Seconds(data_wait_on_s[s]);
  }
  Json json = {{"step", step},
               {"averaged_steps", averaged},
               {"loss", NineDigits(loss)},
               {"lr", NineDigits(lr)},
               {"grad_norm", NineDigits(grad_norm)},
               {"tokens", tokens},
               {"tokens_per_s", std::round(tokens_per_s() * 10) / 10},
               {"step_s", Seconds(step_s)},
               {"data_wait_s", Seconds(data_wait_s)},
               {"data_wait_on_s", std::move(waited_on)},
               {"comm_wait_s", Seconds(comm_wait_s)},
               {"checkpoint_wait_s", Seconds(checkpoint_wait_s)}};
  for (const auto& [name, value] : preferences) json[name] = NineDigits(value);
  if (loss_scale) json["loss_scale"] = *loss_scale;
  if (overflow) json["overflow"] = true;
  if (spike) json["spike"] = true;
  if (unlabelled) json["unlabelled"] = true;
  if (went_back) json["went_back_to"] = *went_back;
  return json;
}

std::string StepReport::ToText(std::uint64_t steps) const {
  const std::string kept = went_back    ? fmt::format("\n  a spike: goes on after step {}", *went_back)
                           : overflow   ? "\n  the gradient overflowed: not learnt from, the loss scale is halved"
                           : spike      ? "\n  a spike: not learnt from"
                           : unlabelled ? "\n  no label of the batch counts: nothing to learn"
                                        : "";
  std::string learnt;
  if (!preferences.empty()) {
    learnt = fmt::format("margin {:.3f}  accuracy {:.3f}  ", preferences.at("rewards/margins"),
                         preferences.at("rewards/accuracies"));
  }
  return fmt::format("step {:>{}}/{}  loss {:.4f}  {}lr {:.2e}  grad {:.3f}  {:>6.0f} tok/s{}{}", step,
                     fmt::formatted_size("{}", steps), steps, loss, learnt, lr, grad_norm, tokens_per_s(),
                     LongestWait(*this), kept);
}

std::map<std::string, double> EvalReport::Metrics() const {
  std::map<std::string, double> metrics = {{"loss", loss}};
  if (tells_perplexity) metrics["perplexity"] = std::exp(loss);
  if (tells_accuracy) metrics["accuracy"] = accuracy;
  if (tells_accuracy && has_row_accuracy) metrics["next_sentence_accuracy"] = row_accuracy;
  metrics.insert(preferences.begin(), preferences.end());
  return metrics;
}

Json EvalReport::ToJson() const {
  Json json = {{"event", "eval"}, {"step", step}, {"samples", samples}, {"labels", labels}, {"seconds", seconds}};
  for (const auto& [name, value] : Metrics()) json[name] = NineDigits(value);
  return json;
}

std::string EvalReport::ToText() const {
  std::string metrics;
  if (tells_perplexity) metrics += fmt::format("  perplexity {:.2f}", std::exp(loss));
  if (tells_accuracy) metrics += fmt::format("  accuracy {:.4f}", accuracy);
  if (tells_accuracy && has_row_accuracy) metrics += fmt::format("  next-sentence accuracy {:.4f}", row_accuracy);
  if (!preferences.empty()) {
    metrics += fmt::format("  margin {:.3f}  accuracy {:.3f}", preferences.at("rewards/margins"),
                           preferences.at("rewards/accuracies"));
  }
  return fmt::format("eval after step {}  loss {:.4f}{}  ({} samples, {:.1f} s)", step, loss, metrics, samples,
                     seconds);
}

Json RunOutcome::ToJson() const {
  Json json = {{"event", "done"},
               {"step", step},
               {"stopped", stopped},
               {"ending", stopped      ? "stopped"
                          : complete() ? "complete"
                                       : "steps_this_run"}};
  if (loss) json["loss"] = NineDigits(*loss);
  return json;
}

std::string RunOutcome::ToText() const {
  if (stopped) return fmt::format("stopped after step {}; run the job again to go on", step);
  if (complete() && !loss) return fmt::format("nothing to do: the run has its {} steps; raise train.steps", steps);
  const std::string after = loss ? fmt::format(", loss {:.4f}", *loss) : "";
  if (complete()) return fmt::format("done: {} steps{}", step, after);
  return fmt::format("done for this run: step {} of {}{}; run the job again to go on", step, steps, after);
}

}  // namespace millrace::train
