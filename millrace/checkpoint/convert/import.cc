#include "millrace/checkpoint/convert/import.h"

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "millrace/checkpoint/commit/commit.h"
#include "millrace/checkpoint/convert/file_importer.h"
#include "millrace/checkpoint/convert/import_journal.h"
#include "millrace/checkpoint/convert/tensors/meta_names.h"
#include "millrace/checkpoint/format/checkpoint_keys.h"
#include "millrace/object/blocking.h"

namespace millrace::checkpoint {
namespace {

/// Adds the group's prefix to all paths.
void AddGroup(ImportSource& source, const std::string& group) {
  if (group.empty()) return;
  source.Rename([&](const std::string& tensor) { return std::optional(group + tensor); });
  const std::string_view folder = std::string_view(group).substr(0, group.size() - 1);
  for (const std::string_view member : {kMetaValues, kMetaDicts}) {
    const auto paths = source.meta.find(std::string(member));
    if (paths == source.meta.end()) continue;
    Json::object_t renamed;
    for (auto& [path, value] : paths->items()) {
      const bool whole = path.empty() && member == kMetaDicts;
      renamed.emplace_back(whole ? std::string(folder) : group + path, std::move(value));
    }
    *paths = std::move(renamed);
  }
}

/// Returns the files of share `share`, in ascending order.
std::vector<std::size_t> FilesOfShare(const FileImporter& importer, const WorkShare& share) {
  std::vector<std::size_t> own;
  for (std::size_t file = 0; file < importer.files(); ++file) {
    if (share.Has(file)) own.push_back(file);
  }
  return own;
}

/// One share of an import that several processes make.
class SharedImport {
 public:
  SharedImport(const ImportSource& source, const object::Location& root, FileImporter& importer,
               const ImportOptions& options, const Logger& log, const object::Call& call, const ByteProgress& progress)
      : source_(source),
        root_(root),
        keys_(root.key),
        importer_(importer),
        options_(options),
        log_(log),
        call_(call),
        progress_(progress) {}

  Result<ImportShareResult> Run() {
    const std::vector<std::size_t> own = FilesOfShare(importer_, options_.share);
    result_ = {.files = importer_.files(), .own_files = own.size()};
    const std::string identity = importer_.Identity();
    auto fence = ExpectedFence(*root_.store, keys_, options_.step, call_);
    if (!fence) return Committed(identity, fence.error());
    notes_.emplace(keys_.StepFolder(options_.step), identity, *fence);
    Manifest planned = MR_TRY(importer_.ManifestOf(notes_->attempt()));
    MR_TRY(notes_->Read(*root_.store, call_));
    std::vector<std::size_t> missing;
    for (const std::size_t file : own) {
      if (!notes_->Has(file)) {
        missing.push_back(file);
        continue;
      }
      ++result_.resumed;
      if (progress_) progress_(importer_.size(file));
    }
    if (result_.resumed > 0)
      log_.Info("going on where an earlier run was stopped", {{"files", result_.resumed}, {"of", own.size()}});
    MR_TRY(importer_.Write(
        *root_.store, keys_.StepFolder(options_.step), notes_->attempt(), missing,
        [&](std::size_t file, const FileMeta& meta) { return notes_->Add(*root_.store, file, meta, call_); }));
    if (importer_.unwritten_checksums() > 0 && !notes_->IsVerified(options_.share)) {
      MR_TRY(importer_.VerifyRest());
      MR_TRY(notes_->AddVerified(*root_.store, options_.share, call_));
    }
    if (options_.share.index > 0) return std::move(result_);
    MR_TRY(AwaitOtherShares(*fence));
    return Commit(std::move(planned), *fence);
  }

 private:
  /// Returns the checkpoint that the shares of this import committed; `taken` if the step's checkpoint is another.
  Result<ImportShareResult> Committed(const std::string& identity, const Error& taken) {
    if (taken.code() != Code::kAlreadyExists) return Fail(taken);
    const std::string key = keys_.ManifestKey(options_.step);
    const auto content = MR_TRY(object::GetAll(*root_.store, key, Manifest::kMaxBytes, call_));
    if (!content || IsFence(content->bytes)) return Fail(taken);
    Manifest there = MR_TRY(Manifest::Parse(content->bytes, key));
    if (!ImportJournal::IsAttemptOf(identity, there.attempt)) return Fail(taken);
    const Manifest planned = MR_TRY(importer_.ManifestOf(there.attempt));
    if (planned.tensors != there.tensors || planned.slices.size() != there.slices.size()) return Fail(taken);
    result_.resumed = result_.own_files;
    result_.manifest = std::move(there);
    return std::move(result_);
  }

  /// Waits until all files are there. A collector may give up the step meanwhile, and another attempt may commit.
  Status AwaitOtherShares(const std::string& fence) {
    std::set<std::size_t> counted;
    bool has_warned = false;
    for (bool is_first = true;; is_first = false) {
      MR_TRY(notes_->Read(*root_.store, call_));
      std::size_t missing = 0;
      for (std::size_t file = 0; file < importer_.files(); ++file) {
        if (!notes_->Has(file)) {
          ++missing;
        } else if (!options_.share.Has(file) && counted.insert(file).second && progress_) {
          progress_(importer_.size(file));
        }
      }
      std::uint32_t unverified = 0;
      if (importer_.unwritten_checksums() > 0) unverified = notes_->Unverified(options_.share.count);
      if (missing == 0 && unverified == 0) return {};
      if (is_first) log_.Info("waiting for other shares", {{"files", missing}});
      if (notes_->has_strangers() && !std::exchange(has_warned, true)) {
        log_.Warning(
            "the step has files of another attempt: shares find each other only if all read the same versions of the "
            "same files, with the same options",
            {{"step", options_.step}});
      }
      if (MR_TRY(ExpectedFence(*root_.store, keys_, options_.step, call_)) != fence) {
        return Fail(Code::kPreconditionFailed,
                    "step {} was given up by garbage collection while it was being imported; start all shares again",
                    options_.step);
      }
      if (!SystemClock().SleepFor(kNotesInterval, call_.stop))
        return Fail(Code::kCancelled, "stopped while {} of {} files of other shares were missing", missing,
                    importer_.files());
    }
  }

  Result<ImportShareResult> Commit(Manifest manifest, const std::string& fence) {
    for (std::size_t file = 0; file < importer_.files(); ++file) {
      const std::string name = FileImporter::FileName(notes_->attempt(), file);
      const FileMeta& meta = notes_->Meta(file);
      if (meta.size != manifest.files.at(name).size) {
        return Fail(Code::kCorrupt, "{}: file {} was written with {} bytes instead of {}", source_.name, name,
                    meta.size, manifest.files.at(name).size);
      }
      manifest.files[name] = meta;
    }
    const CommitOutcome outcome = CommitManifest(*root_.store, keys_, manifest, fence);
    if (!outcome.status) return Fail(outcome.status.error());
    // Best effort: the garbage collection removes notes that stay.
    std::ignore = object::DeleteMany(*root_.store, notes_->Keys());
    result_.manifest = std::move(manifest);
    return std::move(result_);
  }

  /// Between looks for the files of other shares.
  static constexpr Duration kNotesInterval = std::chrono::seconds(1);

  const ImportSource& source_;
  const object::Location& root_;
  const CheckpointKeys keys_;
  FileImporter& importer_;
  const ImportOptions& options_;
  const Logger& log_;
  const object::Call& call_;
  const ByteProgress& progress_;
  std::optional<ImportJournal> notes_;
  ImportShareResult result_;
};

Error WhileImporting(const Error& error, const ImportSource& source, const ImportOptions& options,
                     std::string_view url) {
  return error.Context(fmt::format("importing {} as step {} of {}", source.name, options.step, url));
}

}  // namespace

Result<Manifest> Import(object::Connection& connection, ImportSource source, std::string_view url, MemoryBudget& budget,
                        const ImportOptions& options, object::Call call, const ByteProgress& progress) {
  if (options.step > kMaxStep)
    return Fail(Code::kInvalidArgument, "step {} is too large; choose a smaller one", options.step);
  object::Location root = MR_TRY(object::Locate(connection, url));
  const CheckpointKeys keys(root.key);
  const std::string fence = MR_TRY(ExpectedFence(*root.store, keys, options.step, call));
  AddGroup(source, options.group);
  FileImporter importer(source, budget, options, call, progress);
  MR_TRY(importer.Plan());
  Manifest manifest = MR_TRY(importer.ManifestOf(NewAttempt()));
  std::vector<std::string> written;
  for (const auto& [file, meta] : manifest.files) written.push_back(keys.StepFolder(options.step) + file);
  CommitOutcome outcome;
  outcome.status = importer.Write(*root.store, keys.StepFolder(options.step), manifest.attempt,
                                  FilesOfShare(importer, {}), [&](std::size_t file, const FileMeta& meta) {
                                    manifest.files[FileImporter::FileName(manifest.attempt, file)] = meta;
                                    return Status();
                                  });
  if (outcome.status) outcome.status = importer.VerifyRest();
  if (outcome.status) outcome = CommitManifest(*root.store, keys, manifest, fence);
  if (outcome.status) return manifest;
  // Best effort: the garbage collection removes files that stay.
  if (!outcome.is_unknown) std::ignore = object::DeleteMany(*root.store, std::move(written));
  return Fail(WhileImporting(outcome.status.error(), source, options, url));
}

Result<ImportShareResult> ImportShare(object::Connection& connection, ImportSource source, std::string_view url,
                                      MemoryBudget& budget, const ImportOptions& options, const Logger& log,
                                      object::Call call, const ByteProgress& progress) {
  if (options.step > kMaxStep)
    return Fail(Code::kInvalidArgument, "step {} is too large; choose a smaller one", options.step);
  const object::Location root = MR_TRY(object::Locate(connection, url));
  AddGroup(source, options.group);
  FileImporter importer(source, budget, options, call, progress);
  MR_TRY(importer.Plan());
  auto done = SharedImport(source, root, importer, options, log, call, progress).Run();
  if (!done) return Fail(WhileImporting(done.error(), source, options, url));
  return done;
}

Result<std::uint64_t> ImportBytes(const ImportSource& source, const ImportOptions& options) {
  MemoryBudget none(0);
  FileImporter importer(source, none, options, {}, {});
  MR_TRY(importer.Plan());
  std::uint64_t bytes = 0;
  for (std::size_t file = 0; file < importer.files(); ++file) {
    if (options.share.index == 0 || options.share.Has(file)) bytes += importer.size(file);
  }
  return bytes;
}

}  // namespace millrace::checkpoint
