#include "apps/millrace/sweep/sweep_plan.h"

#include <algorithm>
#include <utility>

#include "apps/millrace/jobs/run_job.h"
#include "millrace/base/files/files.h"

namespace millrace::cli {
namespace {

/// Appends the run's name to a folder that runs must not share.
void Separate(std::string& folder, const std::string& run) {
  if (folder.empty()) return;
  if (!folder.ends_with('/')) folder += '/';
  folder += run;
}

Status RefuseShared(const jobs::Spec& spec, int at_once) {
  if (at_once == 1) return {};
  const bool same_machine = spec.run.launcher == "local" || spec.run.launcher == "ssh";
  if (same_machine && (!spec.run.mounts.empty() || !spec.checkpoint.path.empty())) {
    return Fail(Code::kInvalidArgument,
                "runs at the same time would mount on the same folders (run.mounts, checkpoint.path): use --at-once 1, "
                "or let the program read URLs");
  }
  if (same_machine && !spec.log.metrics_listen.empty() && !spec.log.metrics_listen.ends_with(":0")) {
    return Fail(Code::kInvalidArgument,
                "runs at the same time would listen on {}: leave out log.metrics_listen, or use --at-once 1",
                spec.log.metrics_listen);
  }
  return {};
}

bool IsDefined(const jobs::Spec& spec, const std::string& metric) {
  return std::ranges::find(spec.log.metric_definitions, metric, &jobs::MetricDefinition::name) !=
         spec.log.metric_definitions.end();
}

/// Returns the metric by which runs are compared; "" if there is none.
Result<std::string> MetricOf(const jobs::Spec& spec, const std::string& given) {
  const bool ours = spec.run.command.empty();
  if (given.empty()) {
    if (!ours) return spec.log.metric_definitions.empty() ? "" : spec.log.metric_definitions.back().name;
    return spec.eval.every_steps > 0 ? "eval_loss" : "loss";
  }
  if (IsDefined(spec, given)) return given;
  if (!ours) {
    return Fail(Code::kInvalidArgument, "no entry of log.metric_definitions is named {}: add {{Name: {}, Regex: …}}",
                given, given);
  }
  constexpr std::string_view kEval = "eval_";
  if (given == "loss") return given;
  if (given.starts_with(kEval)) {
    if (spec.eval.every_steps == 0) {
      return Fail(Code::kInvalidArgument, "--metric {}: the job has no evaluation: set eval.every_steps", given);
    }
    return given;
  }
  return Fail(Code::kInvalidArgument,
              "--metric {} should be loss, eval_loss or another metric of eval.metrics with eval_ before it, or a name "
              "in log.metric_definitions",
              given);
}

jobs::StoppingOptions::Rule RuleOf(const std::string& word) {
  if (word == "median") return jobs::StoppingOptions::Rule::kMedian;
  return word == "asha" ? jobs::StoppingOptions::Rule::kAsha : jobs::StoppingOptions::Rule::kNone;
}

/// Returns the keys that differ from run to run.
Result<std::vector<jobs::VariedKey>> VariedKeys(const SweepArguments& arguments) {
  std::vector<jobs::VariedKey> keys;
  for (const std::string& each : arguments.varied) {
    keys.push_back(MR_TRY(jobs::ParseVariedKey(each)));
    if (keys.back().key == "name") return Fail(Code::kInvalidArgument, "name cannot be varied: each run has its own");
  }
  if (keys.empty()) return Fail(Code::kInvalidArgument, "nothing differs from run to run: give --vary KEY=VALUES");
  return keys;
}

/// Gives a run folders of its own. Trackers show the runs of a sweep side by side.
void SeparateRun(jobs::Spec& spec, const std::string& sweep) {
  for (std::string* folder : {&spec.checkpoint.url, &spec.log.url, &spec.log.tensorboard}) {
    Separate(*folder, spec.name);
  }
  if (spec.checkpoint.local) Separate(spec.checkpoint.local->path, spec.name);
  if (spec.log.mlflow && spec.log.mlflow->experiment.empty()) spec.log.mlflow->experiment = sweep;
  if (spec.log.wandb && spec.log.wandb->group.empty()) spec.log.wandb->group = sweep;
  if (spec.log.wandb && spec.log.wandb->project.empty()) spec.log.wandb->project = sweep;
}

/// Checks that early stopping and the launcher can read the metric of a sweep.
Status CheckMetric(const SweepPlan& plan) {
  const std::string& metric = plan.state.metric;
  if (plan.stopping.rule != jobs::StoppingOptions::Rule::kNone && metric.empty()) {
    return Fail(Code::kInvalidArgument, "--early-stop needs a metric: define one in log.metric_definitions");
  }
  if (plan.stopping.rule == jobs::StoppingOptions::Rule::kAsha && plan.stopping.min_steps == 0) {
    return Fail(Code::kInvalidArgument, "--early-stop asha needs --min-steps: the step of the first rung");
  }
  const jobs::Spec& first = plan.specs.front();
  if (first.run.launcher == "ssh" && !metric.empty() && !IsDefined(first, metric)) {
    return Fail(Code::kInvalidArgument,
                "with launcher: ssh, the metric {} is found in the lines of rank 0: add it to log.metric_definitions, "
                "such as {{Name: {}, Regex: \"loss ([0-9.]+)\"}}",
                metric, metric);
  }
  if (first.run.in_pods() && first.log.url.empty() && !metric.empty()) {
    return Fail(Code::kInvalidArgument, "the metrics of pods are read from their bucket: set log.url");
  }
  return {};
}

}  // namespace

Result<SweepPlan> PlanSweep(const SweepArguments& arguments) {
  constexpr std::uint64_t kMaxJobFile = 4 * kMiB;
  const std::string text = MR_TRY(ReadFile(arguments.file, kMaxJobFile));
  const std::vector<jobs::VariedKey> keys = MR_TRY(VariedKeys(arguments));
  const std::vector<jobs::RunValues> values = arguments.random
                                                  ? MR_TRY(jobs::RandomRuns(keys, *arguments.random, arguments.seed))
                                                  : MR_TRY(jobs::GridRuns(keys));

  SweepPlan plan;
  plan.stopping = {.rule = RuleOf(arguments.early_stop),
                   .lower_is_better = arguments.mode == "min",
                   .min_steps = arguments.min_steps,
                   .factor = arguments.factor};
  plan.state.lower_is_better = plan.stopping.lower_is_better;
  for (std::size_t n = 0; n < values.size(); ++n) {
    std::vector<std::string> assignments = arguments.assignments;
    std::string told;
    for (const auto& [key, value] : values[n]) {
      assignments.push_back(fmt::format("{}={}", key, value));
      told += fmt::format("{}{}={}", told.empty() ? "" : ", ", key, value);
    }
    auto parsed = jobs::Spec::Parse(text, arguments.file, assignments);
    if (!parsed) return Fail(parsed.error().Context(fmt::format("run {} of the sweep ({})", n + 1, told)));
    jobs::Spec spec = *std::move(parsed);
    if (n == 0) {
      plan.state.name = arguments.name.empty() ? spec.name : arguments.name;
      plan.state.job = spec.Render();
      plan.state.metric = MR_TRY(MetricOf(spec, arguments.metric));
      MR_TRY(RefuseShared(spec, arguments.at_once));
    }
    assignments.push_back(fmt::format("name={}-{}", plan.state.name, n + 1));
    spec = MR_TRY(jobs::Spec::Parse(text, arguments.file, assignments));
    SeparateRun(spec, plan.state.name);
    plan.state.runs.push_back({.name = spec.name, .values = values[n]});
    plan.specs.push_back(std::move(spec));
  }
  MR_TRY(CheckMetric(plan));
  return plan;
}

}  // namespace millrace::cli
