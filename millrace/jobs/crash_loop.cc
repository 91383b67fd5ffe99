#include "millrace/jobs/crash_loop.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <utility>

namespace millrace::jobs {
namespace {

constexpr std::size_t kMaxFailures = 3;  // two may be chance while steps are made

}  // namespace

void CrashLoop::RecordAttempt(Attempt attempt) {
  nodes_.push_back(attempt.node);
  if (nodes_.size() > kMaxFailures) nodes_.erase(nodes_.begin());
  if (!attempt.fruitless) streak_.clear();
  streak_.push_back(std::move(attempt));
}

std::string CrashLoop::Suspect() const {
  if (nodes_.empty()) return "";
  const std::string& last = nodes_.back();
  const bool always = nodes_.size() == kMaxFailures && std::ranges::count(nodes_, last) == std::ssize(nodes_);
  const bool stuck = streak_.size() >= 2 && streak_[streak_.size() - 2].node == last;
  return always || stuck ? last : "";
}

void CrashLoop::ForgetNodes() {
  streak_.clear();
  nodes_.clear();
}

std::string CrashLoop::Explain() const {
  std::set<std::string> nodes;
  for (const Attempt& attempt : streak_) {
    if (!attempt.node.empty()) nodes.insert(attempt.node);
  }
  const std::optional<std::uint64_t> step = streak_.back().step;
  if (!step) {
    return "no attempt made a step; the last lines of the rank's log say why it ends (`millrace job logs NAME --rank R "
           "--errors`)";
  }
  const bool same_step = std::ranges::all_of(streak_, [&](const Attempt& attempt) { return attempt.step == step; });
  if (!same_step) {
    return "the attempts end at different steps before they get further; save more often (checkpoint.every_steps), and "
           "look for what ends the ranks (`millrace job logs NAME --rank R --errors`)";
  }
  if (nodes.size() == 1) {
    return fmt::format(
        "step {} fails each time on node {}, and there is no node in its place: leave {} out "
        "(run.exclude on Slurm), or give the job spares (run.spares)",
        *step + 1, *nodes.begin(), *nodes.begin());
  }
  std::string text = fmt::format("step {} fails each time", *step + 1);
  if (!nodes.empty()) text += fmt::format(", on different nodes ({})", fmt::join(nodes, ", "));
  text += ": its samples, or the model's state, are the cause and no machine";
  if (sequences_per_step_ > 0) {
    text += fmt::format("; it takes sequences {} to {} of the run's order, counted from 0", *step * sequences_per_step_,
                        (*step + 1) * sequences_per_step_ - 1);
  }
  return text + "; look at the data (`millrace data inspect JOB.yaml`), at the loss of the steps before, or at memory";
}

}  // namespace millrace::jobs
