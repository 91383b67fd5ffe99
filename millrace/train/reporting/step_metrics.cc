#include "millrace/train/reporting/step_metrics.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "millrace/train/reporting/stopwatch.h"

namespace millrace::train {
namespace {

/// From 1 ms, as good as no wait, to half an hour.
std::vector<double> SecondsBounds() {
  std::vector<double> bounds;
  constexpr int kDoublings = 22;  // up to 35 minutes
  for (int i = 0; i < kDoublings; ++i) bounds.push_back(std::ldexp(1e-3, i));
  return bounds;
}

}  // namespace

StepMetrics::StepMetrics(const Plan& plan, double flops_rate)
    : flops_rate_(flops_rate),
      step_(registry_.AddGauge("millrace_train_step", "Steps done")),
      checkpoint_step_(registry_.AddGauge("millrace_train_checkpoint_step", "Of the last checkpoint")),
      checkpoint_seconds_(
          registry_.AddGauge("millrace_train_checkpoint_seconds", "Time until the last checkpoint was committed")),
      checkpoint_bytes_(registry_.AddGauge("millrace_train_checkpoint_bytes", "Rank 0's share of the last checkpoint")),
      tokens_(
          registry_.AddCounter("millrace_train_tokens_total", "Tokens trained on by this process's run, all ranks")),
      checkpoints_(registry_.AddCounter("millrace_train_checkpoints_total", "Checkpoints that this process committed")),
      failed_checkpoints_(
          registry_.AddCounter("millrace_train_failed_checkpoints_total", "Checkpoints that could not be saved")),
      step_seconds_(registry_.AddHistogram("millrace_train_step_seconds", "Time of a step", SecondsBounds())),
      data_wait_(registry_.AddHistogram("millrace_train_wait_seconds", "Time of a step in which it stood still",
                                        SecondsBounds(), {{"for", "data"}})),
      comm_wait_(
          registry_.AddHistogram("millrace_train_wait_seconds", "", SecondsBounds(), {{"for", "communication"}})),
      checkpoint_wait_(
          registry_.AddHistogram("millrace_train_wait_seconds", "", SecondsBounds(), {{"for", "checkpoint"}})) {
  registry_.AddGauge("millrace_train_steps_planned", "Steps that the run will have")
      .Set(static_cast<double>(plan.steps));
  step_.Set(static_cast<double>(plan.resumed_from));
  for (int s = 0; s < data::kLoadStages; ++s) {
    data_wait_on_[s] = &registry_.AddHistogram(
        "millrace_train_data_wait_seconds", "Of the waits for data, what the data were waiting for themselves",
        SecondsBounds(), {{"stage", std::string(data::LoadStageName(static_cast<data::LoadStage>(s)))}});
  }
}

void StepMetrics::OnStep(const StepReport& report) {
  // Before the first step there is no loss: a gauge of 0 would be one.
  step_.Set(static_cast<double>(report.step));
  registry_.AddGauge("millrace_train_loss", "Of the last step").Set(report.loss);
  registry_.AddGauge("millrace_train_learning_rate", "Of the last step").Set(report.lr);
  registry_.AddGauge("millrace_train_grad_norm", "Of the last step, before clipping").Set(report.grad_norm);
  tokens_.Add(report.tokens);
  step_seconds_.Observe(report.step_s);
  data_wait_.Observe(report.data_wait_s);
  comm_wait_.Observe(report.comm_wait_s);
  checkpoint_wait_.Observe(report.checkpoint_wait_s);
  for (int s = 0; s < data::kLoadStages; ++s) data_wait_on_[s]->Observe(report.data_wait_on_s[s]);
}

void StepMetrics::OnFigures(const StepReport& means) {
  const std::string mean = "Mean of the steps between the last two lines of figures (log.every_steps)";
  registry_.AddGauge("millrace_train_tokens_per_second", mean + ", all ranks").Set(means.tokens_per_s());
  if (flops_rate_ <= 0) return;
  registry_
      .AddGauge("millrace_train_model_flops_utilization",
                mean + ": the share of what the description of the machine promises")
      .Set(means.tokens_per_s() * means.flops_per_token / flops_rate_);
}

void StepMetrics::OnCheckpoint(const Result<checkpoint::SaveStats>& saved) {
  if (!saved) return failed_checkpoints_.Add();
  checkpoints_.Add();
  checkpoint_step_.Set(static_cast<double>(saved->step));
  checkpoint_seconds_.Set(SecondsOf(saved->total));
  checkpoint_bytes_.Set(static_cast<double>(saved->bytes));
}

void StepMetrics::OnRanks(std::span<const history::RankFigures> ranks) {
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const history::RankFigures& rank = ranks[i];
    const auto set = [&](std::string name, std::string help, double value, metrics::Labels more = {}) {
      metrics::Labels labels = {{"rank", std::to_string(i)}};
      labels.insert(labels.end(), more.begin(), more.end());
      registry_.AddGauge(std::move(name), std::move(help), std::move(labels)).Set(value);
    };
    const std::string waits = "millrace_train_rank_wait_seconds", help = "Mean of a rank's last steps: its waits";
    set("millrace_train_rank_step_seconds", "Mean of a rank's last steps", rank.times.step);
    set(waits, help, rank.times.data_wait, {{"for", "data"}});
    set(waits, help, rank.times.comm_wait, {{"for", "communication"}});
    set(waits, help, rank.times.checkpoint_wait, {{"for", "checkpoint"}});
    set("millrace_train_rank_memory_bytes", "Resident memory", static_cast<double>(rank.memory_bytes));
    if (rank.gpu_memory_bytes > 0) {
      set("millrace_train_rank_gpu_memory_bytes", "In use on the rank's GPU, by all processes",
          static_cast<double>(rank.gpu_memory_bytes));
    }
    if (rank.gpu.utilization) {
      set("millrace_train_rank_gpu_utilization", "Share of time in which the rank's GPU computed",
          *rank.gpu.utilization);
    }
    if (rank.gpu.celsius) set("millrace_train_rank_gpu_celsius", "Temperature of the rank's GPU", *rank.gpu.celsius);
    if (rank.gpu.watts) set("millrace_train_rank_gpu_watts", "Power that the rank's GPU draws", *rank.gpu.watts);
    set("millrace_train_rank_busy_cores", "Processor time over time", rank.busy_cores);
    set("millrace_train_rank_slowness", "A rank's own time in a step over the median of its peers", rank.slowness);
    set("millrace_train_rank_straggles", "1 if a rank was slower than its peers for many steps",
        rank.straggles ? 1 : 0);
  }
}

void StepMetrics::SetNetwork(const NetworkFigures& network) {
  const auto name = [&](int rank) { return network.nodes[static_cast<std::size_t>(rank)]; };
  for (const LinkFigures& link : network.links) {
    const metrics::Labels ends = {{"from", name(link.first)}, {"to", name(link.second)}};
    registry_.AddGauge("millrace_train_link_bytes_per_second", "Between two machines, before the first step", ends)
        .Set(link.bytes_per_s);
    registry_.AddGauge("millrace_train_link_seconds", "Of a message between two machines, one way", ends)
        .Set(link.latency_s);
  }
  if (network.links.empty()) return;
  registry_.AddGauge("millrace_train_all_reduce_bytes_per_second", "Of all ranks, before the first step")
      .Set(network.all_reduce_bytes_per_s);
  registry_.AddGauge("millrace_train_all_reduce_seconds", "Of a byte, over all ranks")
      .Set(network.all_reduce_latency_s);
}

}  // namespace millrace::train
