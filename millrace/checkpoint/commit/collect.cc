#include "millrace/checkpoint/commit/collect.h"

#include <algorithm>
#include <map>

#include "millrace/checkpoint/commit/commit.h"
#include "millrace/checkpoint/commit/pins.h"
#include "millrace/checkpoint/commit/superseded.h"
#include "millrace/checkpoint/format/checkpoint_keys.h"
#include "millrace/checkpoint/format/manifest.h"
#include "millrace/object/blocking.h"
#include "millrace/object/support/conditions.h"

namespace millrace::checkpoint {
namespace {

/// Files and unfinished uploads of one save.
struct Attempt {
  std::vector<object::ObjectInfo> files;
  std::vector<object::UploadInfo> uploads;
  WallTime newest;
};
/// All objects of one step.
struct Step {
  std::optional<object::ObjectInfo> manifest, fence;  ///< never both
  std::map<std::string, Attempt, std::less<>> attempts;
  std::vector<object::ObjectInfo> pins, holds, going;  ///< marks; at most one pin
};

class Collector {
 public:
  Collector(const object::Location& root, bool dry_run, object::Call call, const RunsView* view = nullptr)
      : store_(*root.store), keys_(root.key), dry_run_(dry_run), call_(std::move(call)), view_(view) {}

  Result<CollectResult> Run(const Retention& retention) {
    MR_TRY(CheckStore());
    MR_TRY(TakeInventory());
    // Also guards the removal of orphans and losers: files of a later owner are in a listing only beside its claim.
    MR_TRY(Confirm(owner_etag_));
    std::set<std::uint64_t> committed;
    for (const auto& [number, step] : steps_) {
      if (!step.manifest || Damaged(step) || superseded_.contains(number)) continue;
      if (view_ == nullptr || view_->ours.contains(number)) committed.insert(number);
      newest_commit_ = std::max(newest_commit_, step.manifest->modified);
    }
    if (committed.empty()) return collected_;
    const std::set<std::uint64_t> kept = Retained(committed, retention, MR_TRY(Metrics(retention)));
    std::vector<std::uint64_t> retired;
    for (const auto& [number, step] : steps_) {
      if (Damaged(step)) continue;  // does not count for retention and is not removed: an operator may repair it
      MR_TRY(RemoveStaleMarks(step));
      const bool is_superseded = step.manifest && superseded_.contains(number);
      const bool goes = is_superseded || (committed.contains(number) && !kept.contains(number));
      if (goes && !Kept(step)) {
        retired.push_back(number);
      } else if (step.manifest) {
        MR_TRY(RemoveLosers(step));
      } else {
        MR_TRY(RemoveOrphans(number, step));
      }
    }
    MR_TRY(Retire(retired));
    return collected_;
  }

  Result<CollectResult> RemoveAfter(std::int64_t last) {
    MR_TRY(CheckStore());
    MR_TRY(TakeInventory());
    std::vector<std::uint64_t> retired;
    for (const auto& [number, step] : steps_)
      if (step.manifest && std::cmp_greater(number, last) && !Kept(step)) retired.push_back(number);
    MR_TRY(Retire(retired));
    return collected_;
  }

 private:
  /// Checks that the store honours conditions of writes. Without them, a fence could replace the manifest of a save
  /// that has just committed.
  Status CheckStore() {
    return dry_run_ ? Status() : object::RequireConditions(store_, keys_.prefix(), kConditionAdvice, call_);
  }

  Status TakeInventory() {
    MR_TRY(object::ListAll(
        store_, {.prefix = keys_.StepsPrefix()},
        [this](const object::ListPage& page) {
          for (const object::ObjectInfo& object : page.objects) {
            if (auto step = keys_.StepOfManifest(object.key)) {
              (object.size == kFenceBytes ? steps_[*step].fence : steps_[*step].manifest) = object;
            } else if (auto mark = keys_.ParseMark(object.key)) {
              AddMark(steps_[mark->step], mark->kind, object);
            } else if (Attempt* attempt = AttemptOf(object.key, object.modified)) {
              attempt->files.push_back(object);
            } else if (object.key == keys_.OwnerKey()) {
              owner_etag_ = object.etag;
            }
          }
          return true;
        },
        call_));
    auto uploads = object::ListUploads(store_, keys_.StepsPrefix(), call_);
    // Some services refuse to list uploads. Their files are collected nevertheless.
    for (object::UploadInfo& upload : uploads.value_or(std::vector<object::UploadInfo>{}))
      if (Attempt* attempt = AttemptOf(upload.key, upload.initiated)) attempt->uploads.push_back(std::move(upload));
    MR_TRY(NameVersions());
    MR_TRY(TellFencesFromDamage());
    if (is_owner()) superseded_ = view_->superseded;
    if (is_owner() || !owner_etag_) return {};
    std::vector<std::uint64_t> manifests;
    for (const auto& [number, step] : steps_)
      if (step.manifest && !Damaged(step)) manifests.push_back(number);
    superseded_ = MR_TRY(FindSuperseded(store_, keys_, manifests, call_));
    return {};
  }
  bool is_owner() const { return view_ != nullptr && view_->confirms_owner; }
  Status Confirm(const std::optional<std::string>& listed_etag) const {
    return is_owner() && !dry_run_ ? view_->confirms_owner(listed_etag) : Status();
  }
  /// Asks for the ETags of manifests and fences, if the store lists none.
  Status NameVersions() {
    for (auto& [number, step] : steps_) {
      for (std::optional<object::ObjectInfo>* one : {&step.manifest, &step.fence}) {
        if (!*one || !(*one)->etag.empty()) continue;
        if (auto now = MR_TRY(object::Head(store_, (*one)->key, call_))) (*one)->etag = now->etag;
      }
    }
    return {};
  }
  /// Reads objects of a fence's size. One that is not a fence is a damaged manifest that was cut to that size.
  Status TellFencesFromDamage() {
    for (auto& [number, step] : steps_) {
      if (!step.fence || step.attempts.empty()) continue;
      const auto content = MR_TRY(object::GetAll(store_, step.fence->key, Manifest::kMaxBytes, call_));
      if (content && !IsFence(content->bytes)) step.manifest = std::exchange(step.fence, std::nullopt);
    }
    return {};
  }
  Attempt* AttemptOf(std::string_view key, WallTime modified) {
    auto file = keys_.ParseFileKey(key);
    if (!file) return nullptr;
    Attempt& attempt = steps_[file->step].attempts[std::string(file->attempt)];
    attempt.newest = std::max(attempt.newest, modified);
    return &attempt;
  }

  static void AddMark(Step& step, CheckpointKeys::MarkKind kind, const object::ObjectInfo& object) {
    if (kind == CheckpointKeys::MarkKind::kPin) step.pins.push_back(object);
    if (kind == CheckpointKeys::MarkKind::kHold) step.holds.push_back(object);
    if (kind == CheckpointKeys::MarkKind::kRemoval) step.going.push_back(object);
  }
  static bool Damaged(const Step& step) { return step.manifest && step.manifest->size < kLeastManifestBytes; }
  /// Returns a predicate: whether a mark has not expired. The time of the newest commit stands for the current time,
  /// since only the store's clock dates marks.
  auto Live() const {
    return [this](const object::ObjectInfo& mark) { return mark.modified + kLeaseTime >= newest_commit_; };
  }
  bool Kept(const Step& step) const { return !step.pins.empty() || std::ranges::any_of(step.holds, Live()); }

  /// Removes marks that killed readers and collectors left.
  Status RemoveStaleMarks(const Step& step) {
    std::vector<std::string> keys;
    auto add = [&](const std::vector<object::ObjectInfo>& marks, bool all) {
      for (const object::ObjectInfo& mark : marks)
        if (all || !Live()(mark)) keys.push_back(mark.key);
    };
    add(step.holds, false);
    add(step.going, !step.manifest);  // without a manifest the removal is complete
    if (!step.manifest) add(step.pins, false);
    return RemoveKeys(std::move(keys));
  }
  Status RemoveKeys(std::vector<std::string> keys) {
    if (dry_run_ || keys.empty()) return {};
    auto failures = MR_TRY(object::DeleteMany(store_, std::move(keys), call_));
    if (!failures.empty()) return Fail(failures[0].error.Context(fmt::format("removing {}", failures[0].key)));
    return {};
  }

  /// Returns retention.metric of each step whose manifest has it.
  Result<std::map<std::uint64_t, double>> Metrics(const Retention& retention) {
    std::map<std::uint64_t, double> metrics;
    if (retention.keep_best <= 0) return metrics;
    for (const auto& [number, step] : steps_) {
      if (!step.manifest) continue;
      auto content = MR_TRY(object::GetAll(store_, step.manifest->key, Manifest::kMaxBytes, call_));
      if (!content || IsFence(content->bytes)) continue;  // another collector was faster
      const Manifest manifest = MR_TRY(Manifest::ParsePart(content->bytes, step.manifest->key));
      auto metric = manifest.metrics.find(retention.metric);
      if (metric != manifest.metrics.end()) metrics.emplace(number, metric->second);
    }
    return metrics;
  }

  /// Removes checkpoints. Puts a `going` mark beside each, then lists the marks. A pin or hold that was put before the
  /// listing keeps its checkpoint. A program that puts one later finds the `going` mark. The listing shows the owner
  /// object, too. If the caller is still the owner there, a later owner finds the marks when it begins.
  Status Retire(const std::vector<std::uint64_t>& numbers) {
    if (numbers.empty()) return {};
    std::map<std::uint64_t, std::string> going;
    std::string first = keys_.StepName(numbers.front());  // of the names, which do not sort as the steps do
    for (const std::uint64_t number : numbers) {
      going.emplace(number, keys_.NewRemovalKey(number));
      first = std::min(first, keys_.StepName(number));
      if (!dry_run_) MR_TRY(object::Put(store_, going.at(number), AsBytes("{}\n"), {}, call_));
    }
    std::map<std::uint64_t, Step> now;
    std::optional<std::string> owner_etag;
    MR_TRY(object::ListAll(
        store_, {.prefix = keys_.StepsPrefix(), .delimiter = "/", .start_after = first},
        [&](const object::ListPage& page) {
          for (const object::ObjectInfo& object : page.objects) {
            if (auto mark = keys_.ParseMark(object.key)) AddMark(now[mark->step], mark->kind, object);
            if (object.key == keys_.OwnerKey()) owner_etag = object.etag;
          }
          return true;
        },
        call_));
    MR_TRY(Confirm(owner_etag));
    for (const auto& [number, mark] : going) MR_TRY(Replace(number, now[number], mark));
    return {};
  }
  /// Puts a fence in place of a manifest, and removes the files that the manifest names. `marks`: those of now.
  Status Replace(std::uint64_t number, const Step& marks, const std::string& going) {
    const Step& step = steps_.at(number);
    // Remove only this collector's mark. Another collector may be between its listing and its fence.
    if (Kept(marks) || !MR_TRY(PutFence(number, step.manifest->etag))) return RemoveKeys({going});
    collected_.removed_steps.push_back(number);
    for (const auto& [name, attempt] : step.attempts) MR_TRY(Remove(attempt));
    // After the fence no program can mark or remove this step. So remove the marks of killed collectors too.
    std::vector<std::string> announced;
    for (const object::ObjectInfo& mark : marks.going) announced.push_back(mark.key);
    return RemoveKeys(std::move(announced));
  }

  /// Removes the files of attempts that lost: in a step with a manifest no other attempt can commit.
  Status RemoveLosers(const Step& step) {
    if (step.attempts.size() < 2) return {};
    auto content = MR_TRY(object::GetAll(store_, step.manifest->key, Manifest::kMaxBytes, call_));
    if (!content || content->info.etag != step.manifest->etag) return {};  // another collector removed it
    Manifest manifest = MR_TRY(Manifest::Parse(content->bytes, step.manifest->key));
    for (const auto& [name, attempt] : step.attempts)
      if (name != manifest.attempt) MR_TRY(Remove(attempt));
    return {};
  }

  Status RemoveOrphans(std::uint64_t number, const Step& step) {
    bool all_old = std::all_of(step.attempts.begin(), step.attempts.end(),
                               [this](const auto& a) { return a.second.newest < newest_commit_; });
    if (step.attempts.empty() || !all_old) return {};
    if (!MR_TRY(PutFence(number, step.fence ? step.fence->etag : ""))) return {};
    for (const auto& [name, attempt] : step.attempts) MR_TRY(Remove(attempt));
    return {};
  }

  /// Puts a fence, after which no attempt with listed files can commit. Returns false if another program changed the
  /// key first: then the step must not be cleaned. After an error the fence may or may not be there, so nothing may be
  /// deleted either.
  Result<bool> PutFence(std::uint64_t number, const std::string& replaces) {
    if (dry_run_) return true;
    auto put = object::Put(store_, keys_.ManifestKey(number), AsBytes(NewFence()),
                           {.if_match = replaces, .if_none_match = replaces.empty()}, call_);
    if (put) return true;
    if (put.error().code() == Code::kPreconditionFailed || put.error().code() == Code::kNotFound) {
      collected_.contested_steps.push_back(number);
      return false;
    }
    return Fail(put.error().Context(fmt::format("fencing off step {}", number)));
  }

  Status Remove(const Attempt& attempt) {
    std::vector<std::string> keys;
    for (const object::ObjectInfo& file : attempt.files) {
      keys.push_back(file.key);
      ++collected_.objects;
      collected_.bytes += file.size;
    }
    collected_.uploads += attempt.uploads.size();
    if (dry_run_) return {};
    for (const object::UploadInfo& upload : attempt.uploads)
      MR_TRY(object::AbortMultipart(store_, upload.key, upload.upload_id, call_));
    return RemoveKeys(std::move(keys));
  }

  object::Store& store_;
  const CheckpointKeys keys_;
  const bool dry_run_;
  const object::Call call_;
  const RunsView* const view_;  ///< null: the caller is no run
  std::map<std::uint64_t, Step> steps_;
  std::optional<std::string> owner_etag_;  ///< nothing: there is no owner object
  std::set<std::uint64_t> superseded_;     ///< of steps_: manifests that do not count
  WallTime newest_commit_;                 ///< by the store's clock, which also dates the files
  CollectResult collected_;
};

}  // namespace

Result<CollectResult> CollectGarbage(const object::Location& root, Retention retention, bool dry_run, object::Call call,
                                     const RunsView* view) {
  return Collector(root, dry_run, std::move(call), view).Run(retention);
}

Result<CollectResult> RemoveAfter(const object::Location& root, std::int64_t step, bool dry_run, object::Call call) {
  return Collector(root, dry_run, std::move(call)).RemoveAfter(step);
}

}  // namespace millrace::checkpoint
