// Which checkpoints there are, and removing those that nobody wants: docs/formats/checkpoint.md, "Removing, and
// fences".
#include <algorithm>
#include <map>

#include "millrace/checkpoint/checkpoint.h"
#include "millrace/checkpoint/layout.h"
#include "millrace/checkpoint/store_reader.h"
#include "millrace/object/blocking.h"

namespace millrace::checkpoint {
namespace {

/// Files and unfinished uploads of one save.
struct Attempt {
  std::vector<object::ObjectInfo> files;
  std::vector<object::UploadInfo> uploads;
  WallTime newest;
};
/// What lies under one step.
struct Step {
  std::optional<object::ObjectInfo> manifest, fence;  ///< never both
  std::map<std::string, Attempt, std::less<>> attempts;
};

class Collector {
 public:
  Collector(const object::Location& root, bool dry_run, object::Call call)
      : store_(*root.store), layout_(root.key), dry_run_(dry_run), call_(std::move(call)) {}

  Result<Collected> Run(const Retention& retention) {
    MR_TRY(TakeInventory());
    std::set<std::uint64_t> committed;
    for (const auto& [number, step] : steps_) {
      if (!step.manifest) continue;
      committed.insert(number);
      newest_commit_ = std::max(newest_commit_, step.manifest->modified);
    }
    if (committed.empty()) return collected_;
    const std::set<std::uint64_t> kept = Retained(committed, retention);
    for (const auto& [number, step] : steps_) {
      if (step.manifest && !kept.contains(number)) {
        MR_TRY(Retire(number, step));
      } else if (step.manifest) {
        MR_TRY(RemoveLosers(step));
      } else {
        MR_TRY(RemoveOrphans(number, step));
      }
    }
    return collected_;
  }

 private:
  Status TakeInventory() {
    MR_TRY(object::ListAll(
        store_, {.prefix = layout_.StepsPrefix()},
        [this](const object::ListPage& page) {
          for (const object::ObjectInfo& object : page.objects) {
            if (auto step = layout_.StepOfManifest(object.key)) {
              (object.size < kFenceLimit ? steps_[*step].fence : steps_[*step].manifest) = object;
            } else if (Attempt* attempt = AttemptOf(object.key, object.modified)) {
              attempt->files.push_back(object);
            }
          }
          return true;
        },
        call_));
    auto uploads = object::ListUploads(store_, layout_.StepsPrefix(), call_);
    // Some services refuse to list uploads; their files are collected all the same.
    for (object::UploadInfo& upload : uploads.value_or(std::vector<object::UploadInfo>{}))
      if (Attempt* attempt = AttemptOf(upload.key, upload.initiated)) attempt->uploads.push_back(std::move(upload));
    return {};
  }
  Attempt* AttemptOf(std::string_view key, WallTime modified) {
    auto file = layout_.ParseFileKey(key);
    if (!file) return nullptr;
    Attempt& attempt = steps_[file->step].attempts[std::string(file->attempt)];
    attempt.newest = std::max(attempt.newest, modified);
    return &attempt;
  }

  Status Retire(std::uint64_t number, const Step& step) {
    if (!MR_TRY(PutFence(number, step.manifest->etag))) return {};
    collected_.removed_steps.push_back(number);
    for (const auto& [name, attempt] : step.attempts) MR_TRY(Remove(attempt));
    return {};
  }

  /// In a step with a manifest no other attempt can commit any more.
  Status RemoveLosers(const Step& step) {
    if (step.attempts.size() < 2) return {};
    auto content = MR_TRY(object::GetAll(store_, step.manifest->key, Manifest::kMaxBytes, call_));
    if (!content || content->info.etag != step.manifest->etag) return {};  // somebody else is at work here
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

  /// From then on no attempt whose files have been listed can commit. False: somebody was faster; the step is not ours
  /// to clean. An error leaves it open whether the fence is there, so nothing may be deleted either.
  Result<bool> PutFence(std::uint64_t number, const std::string& replaces) {
    if (dry_run_) return true;
    auto put = object::Put(store_, layout_.ManifestKey(number), AsBytes(NewFence()),
                           {.if_match = replaces, .if_none_match = replaces.empty()}, call_);
    if (put) return true;
    if (put.error().code() == Code::kPreconditionFailed || put.error().code() == Code::kNotFound) return false;
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
    if (keys.empty()) return {};
    auto failures = MR_TRY(object::DeleteMany(store_, std::move(keys), call_));
    if (!failures.empty()) return Fail(failures[0].error.Context(fmt::format("removing {}", failures[0].key)));
    return {};
  }

  object::Store& store_;
  const Layout layout_;
  const bool dry_run_;
  const object::Call call_;
  std::map<std::uint64_t, Step> steps_;
  WallTime newest_commit_;  ///< by the store's clock, which also dates the files
  Collected collected_;
};

}  // namespace

Result<std::vector<Entry>> ListCheckpoints(const object::Location& root, object::Call call) {
  const Layout layout(root.key);
  std::vector<Entry> entries;
  MR_TRY(object::ListAll(
      *root.store, {.prefix = layout.StepsPrefix(), .delimiter = "/"},
      [&](const object::ListPage& page) {
        for (const object::ObjectInfo& object : page.objects) {
          auto step = layout.StepOfManifest(object.key);
          if (step && object.size >= kFenceLimit) entries.push_back({*step, object.key, object.modified});
        }
        return true;
      },
      call));
  // Keys sort by name; beyond eight digits that is not the order of the steps.
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.step < b.step; });
  return entries;
}

Result<Collected> CollectGarbage(const object::Location& root, Retention retention, bool dry_run, object::Call call) {
  return Collector(root, dry_run, std::move(call)).Run(retention);
}

Result<std::unique_ptr<Reader>> Reader::Open(object::Connection& connection, std::string_view url,
                                             std::optional<std::uint64_t> step, object::Call call) {
  const object::Location root = MR_TRY(object::Locate(connection, url));
  const Layout layout(root.key);
  // A checkpoint may be removed between the listing and the read; then there is a newer one.
  constexpr int kAttempts = 5;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    std::uint64_t number = step.value_or(0);
    if (!step) {
      auto entries = MR_TRY(ListCheckpoints(root, call));
      if (entries.empty()) return Fail(Code::kNotFound, "{} has no committed checkpoint", url);
      number = entries.back().step;
    }
    auto content = MR_TRY(object::GetAll(*root.store, layout.ManifestKey(number), Manifest::kMaxBytes, call));
    if (content && content->bytes.size() >= kFenceLimit) {
      const std::string name = fmt::format("{}/{}", root.store->Describe(), layout.StepName(number));
      Manifest manifest = MR_TRY(Manifest::Parse(content->bytes, name + ".json"));
      if (manifest.step != number)
        return Fail(Code::kCorrupt, "{}.json is the manifest of step {}", name, manifest.step);
      return std::make_unique<StoreReader>(root.store, layout.StepFolder(number), name, std::move(manifest));
    }
    if (step) return Fail(Code::kNotFound, "{} has no committed checkpoint of step {}", url, *step);
  }
  return Fail(Code::kUnavailable, "checkpoints of {} disappear faster than they can be opened", url);
}

}  // namespace millrace::checkpoint
