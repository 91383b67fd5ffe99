// millrace job sweep …
#include <algorithm>
#include <memory>
#include <utility>

#include "apps/common/flag_checks.h"
#include "apps/common/output.h"
#include "apps/millrace/cli/cli.h"
#include "apps/millrace/jobs/job_source.h"
#include "apps/millrace/jobs/run_job.h"
#include "apps/millrace/sweep/sweep_driver.h"
#include "apps/millrace/sweep/sweep_plan.h"
#include "millrace/base/text.h"
#include "millrace/jobs/state.h"

namespace millrace::cli {
namespace {

enum class SweepVerb { kRun, kStatus, kStop };

struct SweepCommand {
  SweepArguments arguments;
  SweepVerb verb = SweepVerb::kRun;
  std::string name;  ///< of `status` and `stop`
};

Json RunAsJson(const jobs::SweepState& state, std::size_t index, std::optional<std::size_t> best) {
  const jobs::SweepRun& run = state.runs[index];
  Json values = Json::object();
  for (const auto& [key, value] : run.values) values[key] = value;
  Json json = {{"run", run.name},        {"state", run.state},   {"reason", run.reason}, {"values", std::move(values)},
               {"metric", state.metric}, {"best", best == index}};
  if (run.step) json["step"] = *run.step;
  if (run.value) json["value"] = *run.value;
  return json;
}

/// Quotes for a shell what needs it.
std::string ShellWord(std::string_view text) {
  constexpr std::string_view kPlain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-+.,/:=@%";
  if (text.find_first_not_of(kPlain) == text.npos) return std::string(text);
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

void PrintTable(const Context& context, const jobs::SweepState& state) {
  const std::optional<std::size_t> best = state.Best();
  if (context.globals.json) {
    for (std::size_t i = 0; i < state.runs.size(); ++i) PrintJsonLine(RunAsJson(state, i, best));
    return;
  }
  std::vector<std::vector<std::string>> rows = {{"RUN", "STATE", "STEP", state.metric.empty() ? "-" : state.metric}};
  for (const auto& [key, value] : state.runs.front().values) rows.front().push_back(key);
  for (const jobs::SweepRun& run : state.runs) {
    rows.push_back({run.name, run.state, run.step ? FormatCount(*run.step) : "-",
                    run.value ? fmt::format("{:.6g}", *run.value) : "-"});
    for (const auto& [key, value] : run.values) rows.back().push_back(value);
  }
  std::vector<std::size_t> widths(rows.front().size());
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      line += i + 1 == row.size() ? row[i] : fmt::format("{:<{}}  ", row[i], widths[i]);
    }
    Print("{}\n", line);
  }
  if (!best) return;
  std::string values;
  for (const auto& [key, value] : state.runs[*best].values) values += " --set " + ShellWord(key + "=" + value);
  Print("best: {}, {} {:.6g}:{}\n", state.runs[*best].name, state.metric, *state.runs[*best].value, values);
}

int ExitStatusOf(const jobs::SweepState& state) {
  const auto count = [&](std::string_view word) {
    return std::ranges::count(state.runs, word, [](const jobs::SweepRun& run) { return std::string_view(run.state); });
  };
  const auto failed = count("failed");
  if (count("waiting") + count("interrupted") + count("running") > 0) return ToExitStatus(Code::kCancelled);
  if (failed == 0) return kExitOk;
  return failed == static_cast<std::ptrdiff_t>(state.runs.size()) ? kExitFailed : kExitPartial;
}

/// Takes over what is known of the runs of a sweep that goes on.
Status Continue(SweepPlan& plan, jobs::SweepState known) {
  const auto other = [&](std::string_view what) {
    return Fail(Code::kPreconditionFailed,
                "sweep \"{}\" was started with {}: give it as it was, or another --name for a new sweep", known.name,
                what);
  };
  if (known.job != plan.state.job) return other("another job file or other values of --set");
  if (known.metric != plan.state.metric || known.lower_is_better != plan.state.lower_is_better) {
    return other("another --metric or --mode");
  }
  if (known.runs.size() > plan.state.runs.size()) return other("more runs");
  for (std::size_t i = 0; i < known.runs.size(); ++i) {
    if (known.runs[i].values != plan.state.runs[i].values) return other("other values of --vary, --random or --seed");
    plan.state.runs[i] = std::move(known.runs[i]);
  }
  plan.state.source = std::move(known.source);
  return {};
}

Result<int> RunSweep(const Context& context, const SweepArguments& arguments) {
  if (arguments.file.empty()) return Fail(Code::kInvalidArgument, "which job? `millrace job sweep JOB.yaml --vary …`");
  SweepPlan plan = MR_TRY(PlanSweep(arguments));
  if (context.globals.dry_run) {
    PrintTable(context, plan.state);
    return ShowChecks(context, plan.specs.front(), {.file = arguments.file, .program = arguments.program});
  }
  const std::filesystem::path root = MR_TRY(jobs::StateRoot());
  const std::string name = plan.state.name;
  auto known = jobs::ReadSweep(root, name);
  if (!known && known.error().code() != Code::kNotFound) return Fail(known.error());
  if (known) {
    MR_TRY(Continue(plan, *std::move(known)));
  } else {
    for (const jobs::Spec& spec : plan.specs) {
      if (!jobs::ReadJob(root, spec.name)) continue;
      return Fail(Code::kAlreadyExists, "there is a job {}: give the sweep another name (--name)", spec.name);
    }
    if (!arguments.no_check) {
      MR_TRY(CheckBeforeStart(context, plan.specs.front(), {.file = arguments.file, .program = arguments.program}));
    }
    jobs::Spec common = MR_TRY(jobs::Spec::Parse(plan.state.job, arguments.file));
    MR_TRY(PackJobSource(context, common));
    plan.state.source = common.run.source;
  }
  for (jobs::Spec& spec : plan.specs) spec.run.source = plan.state.source;
  const UniqueFd lock = MR_TRY(jobs::LockSweep(root, name));
  MR_TRY(jobs::SetSweepStop(root, name, false));
  MR_TRY(jobs::WriteSweep(root, plan.state));
  const jobs::SweepState ended = MR_TRY(DriveSweep(context, arguments, std::move(plan)));
  PrintTable(context, ended);
  return ExitStatusOf(ended);
}

/// Returns the URLs where the metrics of runs in a cluster are.
Result<std::vector<std::string>> LogUrlsOf(const jobs::SweepState& state) {
  const jobs::Spec common = MR_TRY(jobs::Spec::Parse(state.job, "the job of the sweep"));
  std::vector<std::string> urls;
  for (const jobs::SweepRun& run : state.runs) {
    urls.push_back(common.run.in_pods() ? fmt::format("{}/{}", common.log.url, run.name) : "");
  }
  return urls;
}

Result<int> ShowSweep(const Context& context, const std::string& name) {
  jobs::SweepState state = MR_TRY(jobs::ReadSweep(MR_TRY(jobs::StateRoot()), name));
  const auto urls = MR_TRY(LogUrlsOf(state));
  RefreshSweep(context, state, urls);
  PrintTable(context, state);
  return kExitOk;
}

/// The process that runs the sweep stops its runs; without one, this process does.
Result<int> StopSweep(const Context& context, const std::string& name) {
  const std::filesystem::path root = MR_TRY(jobs::StateRoot());
  MR_TRY(jobs::ReadSweep(root, name));
  MR_TRY(jobs::SetSweepStop(root, name, true));
  constexpr Duration kWait = std::chrono::milliseconds(200);
  std::optional<UniqueFd> lock;
  for (bool asked = false;;) {
    if (!lock) {
      auto taken = jobs::LockSweep(root, name);
      if (taken) lock = std::move(*taken);
      if (!taken && taken.error().code() != Code::kBusy) return Fail(taken.error());
    }
    if (lock) {
      jobs::SweepState state = MR_TRY(jobs::ReadSweep(root, name));
      const auto urls = MR_TRY(LogUrlsOf(state));
      RefreshSweep(context, state, urls);
      if (!std::exchange(asked, true)) StopRuns(context, state);
      MR_TRY(jobs::WriteSweep(root, state));
      const bool runs = std::ranges::any_of(state.runs, [](const auto& run) { return run.state == "running"; });
      if (!runs) {
        PrintTable(context, state);
        return kExitOk;
      }
    }
    if (!SystemClock().SleepFor(kWait, context.stop)) {
      return Fail(Code::kCancelled, "sweep \"{}\" was asked to stop; its runs still save", name);
    }
  }
}

Result<int> Dispatch(const Context& context, const SweepCommand& command) {
  switch (command.verb) {
    case SweepVerb::kStatus:
      return ShowSweep(context, command.name);
    case SweepVerb::kStop:
      return StopSweep(context, command.name);
    case SweepVerb::kRun:
      break;
  }
  return RunSweep(context, command.arguments);
}

void AddSweepFlags(CLI::App& sweep, SweepArguments& arguments) {
  sweep.add_option("JOB.yaml", arguments.file, "The job file");
  sweep
      .add_option("--vary", arguments.varied,
                  "KEY=A,B,… or KEY=log:LO..HI, uniform:LO..HI, int:LO..HI: the values of a key (repeatable)")
      ->allow_extra_args(false);
  sweep.add_option("--set", arguments.assignments, "key.path=value: the same in all runs (repeatable)")
      ->allow_extra_args(false);
  sweep.add_option("--random", arguments.random, "Draw the values of so many runs, instead of all combinations")
      ->check(Between(std::size_t{1}, jobs::kMaxSweepRuns));
  sweep.add_option("--seed", arguments.seed, "Of the values that are drawn (default: 1)");
  sweep.add_option("--at-once", arguments.at_once, "The most runs at the same time (default: 1)")
      ->check(Between(1, 1000));
  sweep.add_option("--metric", arguments.metric,
                   "What runs are compared by (default: eval_loss with eval, else loss; of a program of your own, the "
                   "last of log.metric_definitions)");
  sweep.add_option("--mode", arguments.mode, "Which value is best (default: min)")->check(OneOf({"min", "max"}));
  CLI::Option* early =
      sweep.add_option("--early-stop", arguments.early_stop, "Stop runs that are worse than others (default: none)")
          ->check(OneOf({"none", "median", "asha"}));
  sweep.add_option("--min-steps", arguments.min_steps, "With it: stop no run before this step; asha: the first rung")
      ->check(Between(std::uint64_t{1}, std::uint64_t{1} << 40))
      ->needs(early);
  sweep.add_option("--factor", arguments.factor, "With asha: one run of so many goes on from a rung (default: 3)")
      ->check(Between(2, 1000))
      ->needs(early);
  sweep.add_option("--name", arguments.name, "Of the sweep (default: the job's name); its runs are NAME-1, NAME-2, …");
  sweep.add_flag("--no-check", arguments.no_check, "Start the runs without checking data and buckets first");
  sweep.add_option("--program", arguments.program, "The program of a rank, instead of millrace-train")->group("");
}

}  // namespace

void AddSweepCommand(CLI::App& job, Context& context) {
  auto command = std::make_shared<SweepCommand>();
  CLI::App* sweep = AddCommand(
      job, context, "sweep", "Run a job with several values of its keys; compare the runs, and stop bad ones early",
      "  millrace job sweep job.yaml --vary train.optimizer.lr=1e-4,3e-4,1e-3 --vary train.seed=1,2 --at-once 2\n"
      "  millrace job sweep job.yaml --vary train.optimizer.lr=log:1e-5..1e-2 --random 20 --early-stop asha "
      "--min-steps 100\n"
      "  millrace job sweep status llama-demo\n"
      "  millrace job sweep stop llama-demo",
      [&context, command]() -> int {
        const Result<int> status = Dispatch(context, *command);
        return status ? *status : ReportError(context, status.error());
      });
  AddSweepFlags(*sweep, command->arguments);
  for (const auto& [word, verb, what] :
       {std::tuple("status", SweepVerb::kStatus, "Show the runs of a sweep and the best of them"),
        std::tuple("stop", SweepVerb::kStop, "Let the runs of a sweep save and leave; the same sweep goes on later")}) {
    CLI::App* sub = sweep->add_subcommand(word, what);
    sub->add_option("NAME", command->name, "The sweep's name")->required();
    sub->footer(fmt::format("Examples:\n  millrace job sweep {} llama-demo", word));
    // The action of `sweep` itself is chosen last, so this only notes which it is.
    sub->callback([command, verb] { command->verb = verb; });
  }
}

}  // namespace millrace::cli
