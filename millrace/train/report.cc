#include "millrace/train/report.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string_view>

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
          {"tensor", tensor},
          {"sequence", sequence},
          {"precision", precision},
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

/// "2 data-parallel ranks", or "2 data-parallel groups of 4 tensor-parallel ranks (sequence)".
std::string Layout(const Plan& plan) {
  const int data = plan.ranks / plan.tensor;
  const std::string_view plural = data == 1 ? "" : "s";
  if (plan.tensor == 1) return fmt::format("{} data-parallel rank{}", data, plural);
  return fmt::format("{} data-parallel group{} of {} tensor-parallel ranks{}", data, plural, plan.tensor,
                     plan.sequence ? " (sequence)" : "");
}

}  // namespace

std::string Plan::ToText() const {
  std::string text = fmt::format(
      "plan of {}\n"
      "  data      {} records, {}: {} samples of {} tokens an epoch\n"
      "  steps     {} in all, {} an epoch; {} samples a step ({} tokens)\n"
      "  model     {} parameters in {}, {:.1f} MFLOP a token\n"
      "  layout    {}, {} micro-batch{} of {} each; about {} of memory a rank\n",
      name, FormatCount(records), FormatBytes(data_bytes), FormatCount(samples_per_epoch), sequence_length,
      FormatCount(steps), FormatCount(steps_per_epoch), global_batch,
      FormatCount(static_cast<std::uint64_t>(global_batch) * static_cast<std::uint64_t>(sequence_length)),
      FormatCount(static_cast<std::uint64_t>(parameters)), precision, flops_per_token / 1e6, Layout(*this),
      accumulation, accumulation == 1 ? "" : "es", micro_batch, FormatBytes(memory_bytes));
  text += checkpoint_url.empty() ? "  no checkpoints\n" : fmt::format("  checkpoints to {}\n", checkpoint_url);
  if (resumed_from > 0) text += fmt::format("  goes on after step {}\n", FormatCount(resumed_from));
  if (last_step < steps) text += fmt::format("  this run ends after step {}\n", FormatCount(last_step));
  return text;
}

namespace {

/// The stage that most of the wait for data was for.
std::string_view LargestStage(const StepReport& report) {
  auto largest = std::ranges::max_element(report.data_wait_on_s);
  return data::LoadStageName(static_cast<data::LoadStage>(largest - report.data_wait_on_s.begin()));
}

}  // namespace

Json StepReport::ToJson() const {
  Json waited_on;
  for (int s = 0; s < data::kLoadStages; ++s) {
    waited_on[std::string(data::LoadStageName(static_cast<data::LoadStage>(s)))] = Seconds(data_wait_on_s[s]);
  }
  return {{"step", step},
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
}

std::string StepReport::ToText(std::uint64_t steps) const {
  const auto share = [&](double wait) { return step_s > 0 ? 100 * wait / step_s : 0; };
  return fmt::format(
      "step {:>{}}/{}  loss {:.4f}  lr {:.2e}  grad {:.3f}  {:>7.0f} tok/s  {:.1f} GFLOP/s  "
      "wait: data {:.1f} %{} comm {:.1f} % ckpt {:.1f} %",
      step, fmt::formatted_size("{}", steps), steps, loss, lr, grad_norm, tokens_per_s(),
      tokens_per_s() * flops_per_token / 1e9, share(data_wait_s),
      share(data_wait_s) >= 0.1 ? fmt::format(" ({})", LargestStage(*this)) : "", share(comm_wait_s),
      share(checkpoint_wait_s));
}

Json Outcome::ToJson() const {
  return {{"event", "done"},
          {"step", step},
          {"loss", NineDigits(loss)},
          {"stopped", stopped},
          {"ending", stopped      ? "stopped"
                     : complete() ? "complete"
                                  : "steps_this_run"}};
}

std::string Outcome::ToText() const {
  if (stopped) return fmt::format("stopped after step {}; run the job again to go on", step);
  if (complete()) return fmt::format("done: {} steps, loss {:.4f}", step, loss);
  return fmt::format("done for this run: step {} of {}, loss {:.4f}; run the job again to go on", step, steps, loss);
}

}  // namespace millrace::train
