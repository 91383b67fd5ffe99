#include "millrace/checkpoint/save/run_guard.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "millrace/checkpoint/commit/commit.h"
#include "millrace/checkpoint/format/checkpoint_keys.h"
#include "millrace/checkpoint/read/catalog.h"
#include "millrace/checkpoint/read/step_listing.h"
#include "millrace/object/blocking.h"

namespace millrace::checkpoint {

RunGuard::RunGuard(object::Location root, std::optional<RunLineage> run, std::optional<std::uint64_t> resumed,
                   std::shared_ptr<Ownership> ownership, Logger log)
    : root_(std::move(root)),
      ownership_(std::move(ownership)),
      log_(std::move(log)),
      knows_past_(run.has_value()),
      newest_(resumed) {
  run_ = run ? *std::move(run) : RunLineage{.id = NewAttempt()};
}

Result<std::optional<Error>> RunGuard::FindWinner() {
  std::vector<ListedCheckpoint> listed;
  if (ownership_) {
    StepListing listing = MR_TRY(ListSteps(root_));
    const Status confirmed = ownership_->Confirm(listing.owner_etag);
    if (auto lost = ownership_->lost()) return lost;
    MR_TRY(confirmed);
    listed = std::move(listing.committed);
  } else {
    listed = MR_TRY(ListCheckpoints(root_));
  }
  std::set<std::uint64_t> steps;
  for (const ListedCheckpoint& entry : listed) steps.insert(entry.step);
  std::erase_if(known_, [&](std::uint64_t step) { return !steps.contains(step); });
  std::erase_if(ours_, [&](std::uint64_t step) { return !steps.contains(step); });
  std::erase_if(superseded_, [&](std::uint64_t step) { return !steps.contains(step); });
  const bool adopts = !std::exchange(knows_past_, true);
  if (adopts && !newest_ && !listed.empty()) newest_ = listed.back().step;
  for (const ListedCheckpoint& entry : listed) {
    if (known_.contains(entry.step)) continue;
    const auto content = MR_TRY(object::GetAll(*root_.store, entry.key, Manifest::kMaxBytes));
    if (!content || IsFence(content->bytes)) continue;  // removed meanwhile
    known_.insert(entry.step);
    const auto manifest = Manifest::ParsePart(content->bytes, entry.key);
    if (!manifest) {  // damaged: retention counts it, as an operator may look into it
      ours_.insert(entry.step);
      continue;
    }
    if (ownership_ && ownership_->Supersedes(manifest->epoch, entry.step)) {
      superseded_.insert(entry.step);
      log_.Warning("a checkpoint is ignored and removed: its run had lost its place to another one by then",
                   {{"step", entry.step}, {"epoch", manifest->epoch}, {"by", manifest->written_by.host}});
      continue;
    }
    const RunLineage& by = manifest->run;
    if (adopts && entry.step <= newest_ && !by.id.empty() && !run_.WentOnFrom(by.id)) run_.after.push_back(by.id);
    if (auto winner = Judge(*manifest)) return winner;
  }
  return std::nullopt;
}

std::optional<Error> RunGuard::Judge(const Manifest& manifest) {
  const RunLineage& by = manifest.run;
  const std::uint64_t step = manifest.step;
  const std::string place = fmt::format("{}/{}", root_.store->Describe(), root_.key);
  const bool is_own = by.id == run_.id;
  if (is_own && by.attempt > run_.attempt) {
    return Error(Code::kPreconditionFailed,
                 fmt::format("a later attempt of this run saves to {}: it has committed step {}{}. This attempt ends",
                             place, step, WhoWrote(manifest)));
  }
  const bool is_later = !newest_ || step > *newest_;
  if (!is_own && is_later) {
    return Error(
        Code::kPreconditionFailed,
        fmt::format("another run saves to {}: it has committed step {}{}, and this run {}. This run ends, so that the "
                    "checkpoints do not mix. Give each run a URL of its own (checkpoint.url)",
                    place, step, WhoWrote(manifest),
                    newest_ ? fmt::format("came to step {}", *newest_) : "began without a checkpoint"));
  }
  if (is_own || by.id.empty() || run_.WentOnFrom(by.id)) {
    ours_.insert(step);
  } else {
    log_.Warning("another run has saved to the same place: give each run a URL of its own. Its checkpoints stay",
                 {{"url", place}, {"its_step", step}});
  }
  return std::nullopt;
}

void RunGuard::NoteCommit(std::uint64_t step) {
  newest_ = step;
  known_.insert(step);
  ours_.insert(step);
  superseded_.erase(step);
}

}  // namespace millrace::checkpoint
