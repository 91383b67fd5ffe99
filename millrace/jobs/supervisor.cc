#include "millrace/jobs/supervisor.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>

#include "millrace/base/text.h"

namespace millrace::jobs {
namespace {

constexpr int kTailLines = 20;  // a guess: a stack trace and its message, on one screen

/// SageMaker kills a container 120 s after SIGTERM.
constexpr Duration kSageMakerGrace = std::chrono::seconds(100);
constexpr Duration kPodPatience = std::chrono::days(7);
/// The loop looks once a second. A status that takes longer to write does not make a freeze.
constexpr Duration kMaxTick = std::chrono::seconds(5);

std::string_view UseName(NodeState::Use use) {
  switch (use) {
    case NodeState::Use::kRuns:
      return "runs";
    case NodeState::Use::kSpare:
      return "spare";
    case NodeState::Use::kLost:
      return "lost";
    case NodeState::Use::kUnfit:
      return "unfit";
    default:
      return "set aside";
  }
}

std::string DescribeState(const RankState& rank) {
  if (!rank.cause.empty()) return rank.cause;
  if (rank.exit) return rank.exit->ToString();
  return rank.step ? "running" : "starting";
}

}  // namespace

Supervisor::Options Supervisor::OptionsOf(const Spec& spec, bool in_sagemaker) {
  Options options{.name = spec.name};
  options.policy.max_restarts = spec.run.max_restarts;
  options.policy.hang_timeout = spec.run.hang_timeout;
  if (in_sagemaker) options.policy.grace = kSageMakerGrace;
  options.policy.reports_steps = spec.run.command.empty();
  if (spec.run.is_over_ssh()) options.policy.start_patience = spec.run.ssh.connect_timeout.value_or(Duration(0));
  // The cluster decides when pods come; `job status` tells why they do not.
  if (spec.run.in_pods()) options.policy.start_patience = kPodPatience;
  if (spec.run.command.empty()) options.policy.sequences_per_step = static_cast<std::uint64_t>(spec.train.global_batch);
  options.cost = spec.cost;
  return options;
}

Supervisor::Supervisor(Launcher& launcher, Clock& clock, Random random, Options options)
    : launcher_(launcher),
      clock_(clock),
      options_(std::move(options)),
      policy_(options_.policy, random),
      cost_(options_.cost, clock.Now(), options_.spent_before),
      running_time_(kMaxTick) {
  status_.name = options_.name;
  status_.pid = ::getpid();
  status_.pid_start = ProcessStart(status_.pid);
  status_.started = FormatIso8601(clock_.Wall());
}

JobOutcome Supervisor::Run(std::stop_token stop) {
  Publish("starting", "starting");
  for (;;) {
    NoteSteps();
    NoteNodes();
    CountCost();
    if (std::string reason = LeaveReason(); !reason.empty()) policy_.EndBecause(std::move(reason), /*may_return=*/true);
    if (std::string reason = launcher_.RegroupReason(); !reason.empty() && !policy_.regrouping()) {
      regroup_reason_ = std::move(reason);
      policy_.Regroup();
    }
    const TimePoint now = running_time_.Advance(clock_.Now());
    Policy::Decision decision = policy_.Next(now, ranks_, stop.stop_requested());
    NoteFailure();
    NoteSuspect();
    switch (decision.action) {
      case Policy::Action::kStart:
        Start();
        break;
      case Policy::Action::kTerminate:
        Terminate();
        break;
      case Policy::Action::kKill:
        launcher_.Signal(SIGKILL);
        break;
      case Policy::Action::kWait:
        if (clock_.Now() >= next_status_) Publish(status_.state, status_.message);
        // A token that has fired would end every wait at once.
        ranks_ = launcher_.Wait(clock_.Now() + std::min(decision.until - now, next_status_ - clock_.Now()),
                                stop.stop_requested() ? std::stop_token{} : stop);
        break;
      case Policy::Action::kEnd:
        NoteEnd();
        return policy_.outcome();
    }
  }
}

void Supervisor::Start() {
  int attempt = policy_.attempt() + 1;
  std::string reason = policy_.failure() ? policy_.failure()->what : regroup_reason_;
  if (auto started = launcher_.Start(attempt); !started) {
    ranks_ = {};
    NoteNodes();
    policy_.StartFailed(running_time_.AdvanceWhole(clock_.Now()), started.error());
    if (policy_.waiting()) NoteWaiting(started.error().ToString());
    return;
  }
  NoteNodes();
  waits_for_.clear();
  policy_.Started(running_time_.AdvanceWhole(clock_.Now()), launcher_.ranks());
  Json fields = {{"attempt", attempt}, {"ranks", launcher_.ranks()}};
  std::string sentence = fmt::format("started {} rank{}", launcher_.ranks(), launcher_.ranks() == 1 ? "" : "s");
  if (attempt > 1) {
    sentence = fmt::format("attempt {}: {} again: {}", attempt, sentence, reason);
    fields.update({{"reason", reason}, {"delay_s", SecondsOf(policy_.delay())}});
  }
  Emit(JobEvent::Level::kInfo, attempt > 1 ? "restart" : "start", sentence, fields);  // before any line of the ranks
  ranks_ = launcher_.Wait(clock_.Now(), {});
  Publish("running", sentence);
}

/// Tells once what a start waits for.
void Supervisor::NoteWaiting(const std::string& reason) {
  const std::string sentence =
      fmt::format("waiting up to {}: {}", FormatDuration(options_.policy.start_patience), reason);
  if (waits_for_ != reason) {
    Emit(JobEvent::Level::kWarning, "waiting", sentence, {{"attempt", policy_.attempt() + 1}, {"reason", reason}});
  }
  waits_for_ = reason;
  Publish(policy_.attempt() == 0 ? "starting" : "restarting", sentence);
}

void Supervisor::Terminate() {
  launcher_.Signal(SIGTERM);
  if (policy_.regrouping()) {
    std::string sentence = fmt::format("{}: the ranks save and start again", regroup_reason_);
    Emit(JobEvent::Level::kInfo, "regroup", sentence,
         {{"step", policy_.best_step().value_or(0)}, {"reason", regroup_reason_}});
    return Publish("restarting", sentence);
  }
  std::string sentence =
      fmt::format("stopping: the ranks have {} to save and leave", FormatDuration(options_.policy.grace));
  Emit(JobEvent::Level::kInfo, "stopping", sentence, {{"step", policy_.best_step().value_or(0)}});
  Publish("stopping", sentence);
}

/// After a restart, reports the time from the failure to the first new step.
void Supervisor::NoteSteps() {
  if (!failed_at_ || policy_.attempt() <= noted_failure_) return;
  auto stepping =
      std::find_if(ranks_.begin(), ranks_.end(), [](const RankState& rank) { return rank.step.has_value(); });
  if (stepping == ranks_.end()) return;
  Duration took = clock_.Now() - *failed_at_;
  failed_at_.reset();
  Emit(JobEvent::Level::kInfo, "resumed",
       fmt::format("steps are made again, from step {}, {} after the failure", *stepping->step, FormatDuration(took)),
       {{"attempt", policy_.attempt()}, {"step", *stepping->step}, {"resume_s", SecondsOf(took)}});
}

/// Reports what has changed on the machines.
void Supervisor::NoteNodes() {
  std::vector<NodeState> nodes = launcher_.nodes();
  if (nodes == nodes_) return;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const NodeState& node = nodes[i];
    const NodeState before = i < nodes_.size() ? nodes_[i] : NodeState{.name = node.name};
    const auto tell = [&](JobEvent::Level level, std::string sentence) {
      Emit(level, "node", std::move(sentence),
           {{"node", node.name}, {"state", UseName(node.use)}, {"reason", node.reason}});
    };
    const bool was_out = before.use != NodeState::Use::kRuns && before.use != NodeState::Use::kSpare;
    if (!node.reason.empty() && (node.use != before.use || node.reason != before.reason)) {
      tell(JobEvent::Level::kWarning, node.reason);
    } else if (node.use == NodeState::Use::kRuns && before.use == NodeState::Use::kSpare && policy_.attempt() > 0) {
      tell(JobEvent::Level::kInfo, fmt::format("node {}, a spare, has ranks from now on", node.name));
    } else if (was_out && node.reason.empty()) {
      tell(JobEvent::Level::kInfo, fmt::format("node {} is ready again", node.name));
    }
    for (const std::string& warning : node.warnings) {
      if (std::ranges::find(before.warnings, warning) != before.warnings.end()) continue;
      tell(JobEvent::Level::kWarning, fmt::format("node {}: {}", node.name, warning));
    }
  }
  nodes_ = std::move(nodes);
}

/// Sets aside the node that failures point at, if another can take its place.
void Supervisor::NoteSuspect() {
  const std::string suspect = policy_.suspect();
  if (suspect.empty() || suspected_ == policy_.attempt()) return;
  suspected_ = policy_.attempt();
  if (!launcher_.SetAside(suspect, fmt::format("node {} is set aside: its ranks fail again and again", suspect)))
    return;
  policy_.NoteSetAside();
  NoteNodes();
}

std::string Supervisor::LeaveReason() {
  std::string reason = launcher_.LeaveReason();
  return reason.empty() && options_.leave_reason ? options_.leave_reason() : reason;
}

void Supervisor::CountCost() {
  cost_.Count(clock_.Now(), std::max<std::size_t>(1, launcher_.nodes().size()));
  if (!cost_.capped()) return;
  policy_.EndBecause(
      fmt::format("the job has cost {}, and cost.cap is {}", FormatCost(cost_.spent(), cost_.spec().currency),
                  FormatCost(*cost_.spec().cap, cost_.spec().currency)),
      /*may_return=*/false);
}

void Supervisor::NoteFailure() {
  if (!policy_.failure() || noted_failure_ == policy_.attempt()) return;
  const Failure& failure = *policy_.failure();
  noted_failure_ = policy_.attempt();
  if (!failed_at_) failed_at_ = clock_.Now();
  std::string log = failure.rank >= 0 ? launcher_.ErrorTail(failure.rank, kTailLines) : "";
  Emit(JobEvent::Level::kWarning, "failure",
       log.empty() ? failure.what : fmt::format("{}; the last lines of its log:\n{}", failure.what, log),
       {{"attempt", policy_.attempt()},
        {"rank", failure.rank},
        {"reason", failure.what},
        {"hang", failure.hang},
        {"step", policy_.best_step().value_or(0)},
        {"silent_s", SecondsOf(failure.silent)},
        {"log", log}});
  Publish("restarting", failure.what);
}

void Supervisor::NoteEnd() {
  const JobOutcome& outcome = policy_.outcome();
  const char* event = outcome.ending == JobOutcome::Ending::kDone     ? "done"
                      : outcome.ending == JobOutcome::Ending::kFailed ? "failed"
                                                                      : "interrupted";
  auto level = outcome.ending == JobOutcome::Ending::kFailed ? JobEvent::Level::kError : JobEvent::Level::kInfo;
  Json fields = {
      {"reason", outcome.message}, {"step", policy_.best_step().value_or(0)}, {"restarts", policy_.restarts()}};
  std::string sentence = outcome.message;
  if (cost_.known()) {
    fields.update({{"cost", cost_.spent()}, {"currency", cost_.spec().currency}});
    sentence += fmt::format("; it cost {}", FormatCost(cost_.spent(), cost_.spec().currency));
  }
  Emit(level, event, sentence, fields);
  Publish(event, outcome.message);
}

void Supervisor::Emit(JobEvent::Level level, std::string_view event, std::string sentence, Json fields) {
  if (!options_.on_event) return;
  Json object = {{"event", event}, {"time", FormatIso8601(clock_.Wall())}};
  object.update(fields);
  options_.on_event({level, std::move(sentence), std::move(object)});
}

void Supervisor::Publish(std::string state, std::string message) {
  status_.state = std::move(state);
  status_.message = std::move(message);
  status_.attempt = policy_.attempt();
  status_.restarts = policy_.restarts();
  status_.step = policy_.best_step();
  status_.updated = FormatIso8601(clock_.Wall());
  status_.ranks.clear();
  for (const RankState& rank : ranks_) {
    status_.ranks.push_back({rank.pid, DescribeState(rank), rank.step, rank.node});
    // The policy sees a step later than this loop. The job must not show a lower step than its ranks.
    if (rank.step) status_.step = std::max(status_.step.value_or(0), *rank.step);
  }
  status_.nodes.clear();
  for (const NodeState& node : nodes_) {
    status_.nodes.push_back({node.name, std::string(UseName(node.use)), node.reason});
  }
  if (cost_.known()) status_.cost = JobStatus::Cost{cost_.spent(), cost_.spec().currency};
  next_status_ = clock_.Now() + options_.status_interval;
  if (options_.on_status) options_.on_status(status_);
}

}  // namespace millrace::jobs
