#include "apps/millrace/sweep/sweep_driver.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <utility>

#include "apps/common/output.h"
#include "apps/millrace/jobs/background_jobs.h"
#include "apps/millrace/jobs/hub_revisions.h"
#include "apps/millrace/jobs/schedulers/scheduled_jobs.h"
#include "apps/millrace/watch/watched_job.h"
#include "millrace/base/text.h"
#include "millrace/jobs/state.h"

namespace millrace::cli {
namespace {

using Reports = std::vector<jobs::MetricReport>;

constexpr Duration kSweepLook = std::chrono::milliseconds(500);
/// A look asks a scheduler about each run.
constexpr Duration kSchedulerLook = std::chrono::seconds(5);
/// Slurm's default for MaxArraySize is 1001, one more than the largest number of an element.
constexpr int kMaxArrayNumber = 1000;

Reports ReportsOf(const WatchedJob& watched, const std::string& metric) {
  Reports reports;
  const auto& series = watched.job.metrics.series();
  if (const auto found = series.find(metric); found != series.end()) {
    for (const auto& point : found->second.points) reports.push_back({point.last_step, point.mean});
    if (!reports.empty()) reports.back().value = found->second.latest;
  } else if (metric == "loss") {
    for (const auto& point : watched.history.points()) {
      if (point.losses > 0) reports.push_back({point.last_step, point.loss});
    }
  } else if (metric.starts_with("eval_")) {
    const std::string name = metric.substr(std::string_view("eval_").size());
    for (const auto& note : watched.history.evaluations()) {
      if (const auto value = note.metrics.find(name); value != note.metrics.end()) {
        reports.push_back({note.step, value->second});
      }
    }
  }
  return reports;
}

/// Returns what a status means for a run of a sweep.
std::string StateOf(const jobs::SweepRun& run, const jobs::JobStatus& status) {
  if (status.active()) return "running";
  if (status.state == "done" || status.state == "failed") return status.state;
  const auto root = jobs::StateRoot();
  const auto returns = root && jobs::MayRestart(*root, run.name).value_or(false);  // Slurm starts it again
  if (status.state == "interrupted" && returns) return "running";
  return run.reason.empty() ? "interrupted" : "stopped";
}

std::string Told(const jobs::RunValues& values) {
  std::string told;
  for (const auto& [key, value] : values) told += fmt::format("{}{}={}", told.empty() ? "" : ", ", key, value);
  return told;
}

class SweepDriver {
 public:
  SweepDriver(const Context& context, const SweepArguments& arguments, SweepPlan plan, std::filesystem::path root)
      : context_(context),
        arguments_(arguments),
        plan_(std::move(plan)),
        root_(std::move(root)),
        log_urls_(LogUrls(plan_)),
        scheduler_(SchedulerOf(plan_.specs.front().run.launcher)) {}

  Result<jobs::SweepState> Run() {
    while (!Over()) {
      Look();
      if (jobs::IsSweepStopped(root_, state().name)) {
        if (!std::exchange(stopping_, true)) StopRuns(context_, state());
      } else {
        JudgeRuns();
        MR_TRY(StartRuns());
      }
      MR_TRY(jobs::WriteSweep(root_, state()));
      if (Over()) break;
      if (!SystemClock().SleepFor(scheduler_ != nullptr ? kSchedulerLook : kSweepLook, context_.stop)) {
        return Fail(Code::kCancelled,
                    "sweep {}: {} runs go on; the same command watches them again, `millrace job sweep stop {}` ends "
                    "them",
                    state().name, Count("running"), state().name);
      }
    }
    return std::move(plan_.state);
  }

 private:
  jobs::SweepState& state() { return plan_.state; }

  std::size_t Count(std::string_view word) const {
    return static_cast<std::size_t>(std::ranges::count(
        plan_.state.runs, word, [](const jobs::SweepRun& run) { return std::string_view(run.state); }));
  }

  /// A run that fails is not tried again by the same command.
  bool MayStart(std::size_t i) const { return plan_.state.runs[i].waits() && !tried_[i]; }

  bool Over() const {
    if (Count("running") > 0) return false;
    if (stopping_) return true;
    for (std::size_t i = 0; i < plan_.state.runs.size(); ++i) {
      if (MayStart(i)) return false;
    }
    return true;
  }

  void Tell(const jobs::SweepRun& run, std::string_view what) const {
    if (!context_.globals.quiet) PrintError("millrace: sweep {}: {} {}\n", plan_.state.name, run.name, what);
  }

  void Look() {
    const std::vector<jobs::SweepRun> before = state().runs;
    reports_ = RefreshSweep(context_, state(), log_urls_);
    for (std::size_t i = 0; i < before.size(); ++i) {
      const jobs::SweepRun& run = state().runs[i];
      if (run.state == before[i].state) continue;
      const std::string value = run.value ? fmt::format("; {} {:.6g}", state().metric, *run.value) : "";
      const std::string step = run.step ? fmt::format(" at step {}", FormatCount(*run.step)) : "";
      Tell(run, fmt::format("is {}{}{}{}", run.state, step, value, run.reason.empty() ? "" : " (" + run.reason + ")"));
    }
  }

  void JudgeRuns() {
    for (std::size_t i = 0; i < state().runs.size(); ++i) {
      jobs::SweepRun& run = state().runs[i];
      if (run.state != "running" || !run.reason.empty()) continue;
      const auto why = jobs::WhyStop(plan_.stopping, reports_, i, run.rungs_passed);
      if (!why) continue;
      const Status asked = RequestStop(context_, run.name);
      if (!asked) continue;  // it has ended meanwhile, or the next look tries again
      run.reason = *why;
      Tell(run, fmt::format("is stopped early: {}", *why));
    }
  }

  Status StartRuns() {
    if (scheduler_ == &SlurmScheduler() && !std::exchange(array_tried_, true) && MR_TRY(StartArray())) return {};
    for (std::size_t i = 0; i < state().runs.size(); ++i) {
      if (Count("running") >= static_cast<std::size_t>(arguments_.at_once)) break;
      if (MayStart(i)) StartRun(i);
    }
    return {};
  }

  /// Gives all runs that wait to Slurm at once, which then starts `at_once` at the same time. Returns false if they do
  /// not fit an array.
  Result<bool> StartArray() {
    std::vector<std::pair<int, jobs::Spec>> elements;
    for (std::size_t i = 0; i < state().runs.size(); ++i) {
      if (!MayStart(i)) continue;
      MR_TRY(PinHubRevisions(context_, plan_.specs[i]));
      elements.emplace_back(static_cast<int>(i) + 1, plan_.specs[i]);
    }
    if (elements.empty() || elements.back().first > kMaxArrayNumber) return false;
    const auto id = SubmitArrayToSlurm(context_, state().name, elements, arguments_.at_once);
    if (!id && id.error().code() == Code::kUnsupported) return false;
    if (!id) return Fail(id.error());
    for (const auto& [number, spec] : elements) Started(static_cast<std::size_t>(number) - 1);
    if (!context_.globals.quiet) {
      PrintError("millrace: sweep {}: {} runs are the array {} of Slurm, {} at once\n", state().name, elements.size(),
                 *id, arguments_.at_once);
    }
    return true;
  }

  void Started(std::size_t i) {
    tried_[i] = true;
    state().runs[i].state = "running";
    state().runs[i].reason.clear();
  }

  void StartRun(std::size_t i) {
    jobs::SweepRun& run = state().runs[i];
    const Status done = [&]() -> Status {
      MR_TRY(PinHubRevisions(context_, plan_.specs[i]));
      if (scheduler_ != nullptr) {
        MR_TRY(SubmitToScheduler(context_, plan_.specs[i], *scheduler_));
        return {};
      }
      const BackgroundStart started = MR_TRY(StartInBackground(context_, plan_.specs[i], arguments_.program));
      if (started.exit_status == kExitOk) return {};
      return Fail(Code::kInternal, "the supervisor of the run ended with exit status {}", started.exit_status);
    }();
    Started(i);
    if (done) return Tell(run, fmt::format("starts: {}", Told(run.values)));
    run.state = "failed";
    run.reason = done.error().ToString();
    Tell(run, fmt::format("does not start: {}", run.reason));
  }

  const Context& context_;
  const SweepArguments& arguments_;
  SweepPlan plan_;
  const std::filesystem::path root_;
  const std::vector<std::string> log_urls_;
  Scheduler* const scheduler_;  ///< nullptr: supervisors run on this machine
  std::vector<Reports> reports_;
  std::vector<bool> tried_ = std::vector<bool>(plan_.state.runs.size());
  bool array_tried_ = false, stopping_ = false;
};

}  // namespace

std::vector<std::string> LogUrls(const SweepPlan& plan) {
  std::vector<std::string> urls;
  for (const jobs::Spec& spec : plan.specs) urls.push_back(spec.run.in_pods() ? spec.log.url : "");
  return urls;
}

std::vector<Reports> RefreshSweep(const Context& context, jobs::SweepState& state,
                                  const std::vector<std::string>& log_urls) {
  std::vector<Reports> reports(state.runs.size());
  for (std::size_t i = 0; i < state.runs.size(); ++i) {
    jobs::SweepRun& run = state.runs[i];
    if (run.state == "waiting") continue;
    // The status first: the metrics of a job that has ended are whole.
    const auto status = ReadJobAnywhere(run.name);
    const std::string& url = log_urls[i];
    auto watcher = JobWatcher::Open(context, url.empty() ? run.name : url, "");
    if (const auto watched = watcher ? watcher->Read() : Fail(watcher.error())) {
      reports[i] = ReportsOf(*watched, state.metric);
      if (!reports[i].empty()) run.value = reports[i].back().value;
      if (!reports[i].empty()) run.step = reports[i].back().step;
    }
    if (run.state != "running") continue;
    if (!status) continue;  // a job that cannot be read now is looked at again
    if (status->step) run.step = status->step;
    run.state = StateOf(run, *status);
    if (run.state == "failed") run.reason = status->message;
  }
  return reports;
}

void StopRuns(const Context& context, jobs::SweepState& state) {
  for (jobs::SweepRun& run : state.runs) {
    if (run.state != "running") continue;
    // One that has just ended is found so by the next look.
    if (const Status asked = RequestStop(context, run.name); !asked)
      context.log().Info("not stopped", {{"job", run.name}});
  }
}

Result<jobs::SweepState> DriveSweep(const Context& context, const SweepArguments& arguments, SweepPlan plan) {
  return SweepDriver(context, arguments, std::move(plan), MR_TRY(jobs::StateRoot())).Run();
}

}  // namespace millrace::cli
