// sync.
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "apps/millrace/cli/share_flag.h"
#include "apps/millrace/objects/object_copier.h"
#include "apps/millrace/objects/object_folders.h"
#include "apps/millrace/objects/object_watch.h"
#include "millrace/base/text.h"
#include "millrace/transfer/plan/sorted_names.h"
#include "millrace/transfer/plan/sync_plan.h"

namespace millrace::cli {
namespace {

namespace fs = std::filesystem;
using OnProblem = std::function<void(const std::string&, const Error&)>;

/// The items of one side. Remembers whether there were any, and the last symbolic link to a folder.
class NotedStream final : public transfer::ItemStream {
 public:
  explicit NotedStream(std::unique_ptr<transfer::ItemStream> inner) : inner_(std::move(inner)) {}

  Result<std::optional<transfer::Item>> Next() override {
    auto item = MR_TRY(inner_->Next());
    any_ = any_ || item;
    const bool link = item && item->info.etag == object::TreeWalker::kLinkETag && item->name.ends_with('/');
    if (link && !IsBehindLink(item->name)) link_ = item->name;
    return item;
  }
  bool any() const { return any_; }
  /// Returns whether the name is below the last symbolic link to a folder.
  bool IsBehindLink(const std::string& name) const {
    return !link_.empty() && name.size() > link_.size() && name.starts_with(link_);
  }

 private:
  std::unique_ptr<transfer::ItemStream> inner_;
  bool any_ = false;
  std::string link_;
};

/// Names that the source does not have. They are deleted only once both listings have ended and every copy succeeded: a
/// listing that fails or turns out to be out of order says nothing about what the source lacks. Deletes none if there
/// are more than `most`, in all shares together.
class ExtraNames {
 public:
  ExtraNames(TransferRun& run, const ObjectPlace& to, std::string folder, std::optional<std::uint64_t> most)
      : deletions_(run, to, folder, true), folder_(std::move(folder)), most_(most) {}

  /// Counts a name. Keeps it if it is in this process's share.
  void Add(std::string_view name, bool is_own) {
    ++count_;
    if (is_own && (!most_ || count_ <= *most_)) held_.Add(name);
  }
  std::uint64_t count() const { return count_; }
  /// Deletes the names. Fails if there are too many.
  Status Finish() {
    if (most_ && count_ > *most_) {
      return Fail(Code::kInvalidArgument,
                  "the source lacks {} names that the destination has, more than --max-delete {}; none was deleted",
                  FormatCount(count_), *most_);
    }
    held_.ForEach([&](const std::string& name) { deletions_.Add(folder_ + name); });
    deletions_.Flush();
    return {};
  }

 private:
  Deletions deletions_;
  const std::string folder_;
  const std::optional<std::uint64_t> most_;
  std::uint64_t count_ = 0;
  transfer::SortedNames held_;
};

/// Copies onto a local folder that must wait for deletions: the destination has a folder in the place of a file, or a
/// file in the place of a folder.
class BlockedCopies {
 public:
  /// `root`: the destination, with a slash at its end.
  explicit BlockedCopies(std::string root) : root_(std::move(root)) {}

  /// Returns whether something else is in the place of the file `name`.
  bool Blocks(const std::string& name) const {
    std::error_code error;
    for (std::size_t end = name.find('/'); end != name.npos; end = name.find('/', end + 1)) {
      const fs::file_status status = fs::status(root_ + name.substr(0, end), error);
      if (fs::exists(status) && !fs::is_directory(status)) return true;
    }
    return fs::is_directory(root_ + name, error);
  }
  void Add(transfer::Item item) { items_.push_back(std::move(item)); }
  bool empty() const { return items_.empty(); }
  /// Removes the folders in the place of files that the deletions have emptied, and returns the copies.
  std::vector<transfer::Item> Release() {
    for (const transfer::Item& item : items_) {
      const fs::path folder = root_ + item.name;
      std::error_code error;
      if (!fs::is_directory(fs::symlink_status(folder, error))) continue;
      RemoveEmptyFolders(folder, [](const std::string&) { return false; });
      ::rmdir(folder.c_str());  // fails if something is left in it, and so does the copy then
    }
    return std::move(items_);
  }

 private:
  const std::string root_;
  std::vector<transfer::Item> items_;
};

/// Names of the source that cannot be copied. What the destination has there, and below, may be a copy of it and is not
/// extra.
class UnreadNames {
 public:
  void Add(std::string name) {
    if (name.ends_with('/')) name.pop_back();
    names_.insert(std::move(name));
  }
  bool Protect(const std::string& name) const {
    if (names_.empty()) return false;
    for (std::size_t end = 0; end != name.npos; end = name.find('/', end + 1)) {
      if (names_.contains(name.substr(0, end))) return true;
    }
    return names_.contains(name);
  }

 private:
  std::set<std::string> names_;  ///< of folders without their slash; empty: the whole source
};

/// Returns the listing of one side. A missing local folder counts as empty.
Result<std::unique_ptr<transfer::ItemStream>> ListSide(const ObjectPlace& place, const object::Call& call,
                                                       const OnProblem& on_problem, transfer::Links links,
                                                       bool empty_folders) {
  std::string prefix = AsFolder(place.key);
  if (!place.local()) return transfer::ListStore(*place.store, prefix, prefix.size(), call);
  auto files = MR_TRY(transfer::ListLocal(prefix, prefix.size(), on_problem, call, links));
  if (!empty_folders) return files;
  return WithFolders(std::move(files), prefix, EmptyFolders("/" + prefix));
}

/// Folders of the source that `sync --delete` keeps in a local destination, though they are empty there.
class SourceFolders {
 public:
  SourceFolders(const ObjectPlace& from, const transfer::NameFilter& filter) : from_(from), filter_(filter) {}

  /// Notes the marker of a folder.
  void Add(const std::string& name) {
    if (!from_.local()) markers_.insert(name);
  }
  bool Keeps(const std::string& name) const {
    if (filter_.ExcludesFolder(name.substr(0, name.size() - 1)) || markers_.contains(name)) return true;
    return from_.local() && fs::is_directory("/" + AsFolder(from_.key) + name);
  }

 private:
  const ObjectPlace& from_;
  const transfer::NameFilter& filter_;
  std::set<std::string> markers_;
};

/// Deletes what the source lacks, if every copy has succeeded. Then makes the copies that waited for it.
Status EndSync(TransferRun& run, ExtraNames& extra, BlockedCopies& blocked,
               const std::function<void(transfer::Item)>& copy) {
  if (extra.count() == 0 && blocked.empty()) return {};
  run.Wait();
  if (run.failed()) {
    PrintError("millrace: a copy failed, so {} names that the source lacks were not deleted\n",
               FormatCount(extra.count()));
    return {};
  }
  MR_TRY(extra.Finish());
  run.Wait();
  for (transfer::Item& item : blocked.Release()) copy(std::move(item));
  return {};
}

/// Returns whether `name` is the marker of a folder that the source has on disk, perhaps without any file.
bool IsFolderOf(const ObjectPlace& from, const std::string& name) {
  return from.local() && name.ends_with('/') && fs::is_directory("/" + AsFolder(from.key) + name);
}

Status CheckFolders(const ObjectPlace& from, const ObjectPlace& to) {
  for (const ObjectPlace* place : {&from, &to}) {
    if (!place->local() || fs::is_directory("/" + place->key)) continue;
    const bool there = fs::exists("/" + place->key);
    if (!there && place == &to) continue;
    return Fail(there ? Code::kInvalidArgument : Code::kNotFound,
                "{} is not a folder; sync works on folders and prefixes", place->Name());
  }
  return {};
}

/// What the steps of a plan act on.
struct SyncSides {
  const CopyFlags& flags;
  const WorkShare& share;
  const CopySource& source;
  const std::string& to_folder;
  const NotedStream& there;
  const UnreadNames& unread;
  TransferRun& run;
  Copier& copier;
  ExtraNames& extra;
  SourceFolders& folders;
  BlockedCopies* blocked;     ///< null: nothing is in the way of a copy
  UnsettledFiles* unsettled;  ///< null: files are copied however young they are
  bool any_passes = false;    ///< the source has a name that passes the filter

  void Take(transfer::SyncAction action);
};

void SyncSides::Take(transfer::SyncAction action) {
  using Operation = transfer::SyncAction::Operation;
  const bool deletes = action.operation == Operation::kDelete;
  const bool is_own = share.HasName(action.item.name), is_folder = action.item.name.ends_with('/') && !deletes;
  any_passes = any_passes || !deletes;
  if (is_folder) folders.Add(action.item.name);
  if (!is_own && !deletes) return;
  if (deletes) {
    // Names behind a link do not belong to the tree: only the link itself is kept or deleted.
    const bool is_extra = !there.IsBehindLink(action.item.name) &&
                          !IsFolderOf(source.selection.place, action.item.name) && !unread.Protect(action.item.name);
    if (is_extra) extra.Add(action.item.name, is_own);
  } else if (is_folder && source.selection.place.local()) {
    copier.AddFolder(source, to_folder, action.item);
  } else if (action.operation == Operation::kSame && !flags.when.checksum) {
    run.Skip();
  } else if (unsettled != nullptr && unsettled->Has("/" + action.item.info.key)) {
    return;  // it may still be written
  } else if (blocked != nullptr && action.operation == Operation::kCopy && blocked->Blocks(action.item.name)) {
    blocked->Add(std::move(action.item));
  } else {
    copier.AddBeneath(source, to_folder, std::move(action.item));
  }
}

Status CheckSync(const CopyFlags& flags, const ObjectPlace& from, const ObjectPlace& to,
                 const transfer::NameFilter& filter) {
  MR_TRY(CheckWritable(to));
  MR_TRY(flags.write.Check());
  MR_TRY(flags.write.CheckParts(to.store->limits()));
  MR_TRY(CheckFolders(from, to));
  return CheckApart(from, to, filter, flags.delete_extra);
}

transfer::SyncRules RulesOf(const CopyFlags& flags, const transfer::NameFilter& filter) {
  return {.size_only = flags.size_only,
          .exact_timestamps = flags.exact_timestamps,
          .delete_extra = flags.delete_extra,
          .allow_empty_source = flags.allow_empty_source,
          .filter = filter};
}

/// Checks that the source is there, and warns if the filter has left out all of it.
Status CheckFound(const SyncSides& sides, const NotedStream& have, const transfer::NameFilter& filter) {
  const ObjectPlace& from = sides.source.selection.place;
  if (!have.any() && !from.local() && !from.key.empty() && !sides.flags.allow_empty_source) {
    return Fail(Code::kNotFound,
                "there is nothing at {}; check the URL, or allow an empty source with --allow-empty-source",
                from.Name());
  }
  if (have.any() && !sides.any_passes && filter.has_rules()) WarnOfEmptyFilter(from);
  return {};
}

/// `unsettled`: null, or gets the files of a local source that are left out because they may be under way.
Result<int> Sync(const Context& context, object::Connection& connection, const CopyFlags& flags,
                 UnsettledFiles* unsettled) {
  const WorkShare share = MR_TRY(ReadShare(flags.share));
  const SourceConnection reading =
      MR_TRY(ConnectSources(context, connection, flags.source, flags.sources(), flags.destination()));
  ObjectPlace from = MR_TRY(OpenPlace(*reading.connection, flags.sources().front(), flags.select.view));
  ObjectPlace to = MR_TRY(OpenPlace(connection, flags.destination()));
  const transfer::NameFilter filter(flags.select.rules, flags.select.bookkeeping);
  MR_TRY(CheckSync(flags, from, to, filter));
  const std::string from_folder = AsFolder(from.key), to_folder = AsFolder(to.key);
  TransferRun run(context, "sync", /*reports_idle=*/!flags.watch);
  const CopySource source = MR_TRY(
      CopySource::Of({.place = from, .prefix = from_folder, .name_from = from_folder.size(), .filter = filter}, false));
  Copier copier(run, flags, false, to, {.always = reading.is_elsewhere, .bytes = context.DataBudget()});
  ExtraNames extra(run, to, to_folder, flags.max_delete);
  UnreadNames unread;
  auto source_problem = [&](const std::string& path, const Error& error) {
    if (path.size() >= from_folder.size()) unread.Add(path.substr(from_folder.size()));
    if (source.selection.Wants(path)) run.AddFailure("/" + path, to.Name(to_folder), error);
  };
  auto destination_problem = [&](const std::string& path, const Error& error) {
    if (!transfer::IsNoFile(error)) run.AddFailure(from.Name(from_folder), "/" + path, error);
  };
  NotedStream have(MR_TRY(ListSide(from, run.call(), source_problem,
                                   flags.select.skips_links ? transfer::Links::kSkip : transfer::Links::kFollow,
                                   flags.empty_folders)));
  NotedStream there(MR_TRY(ListSide(to, run.call(), destination_problem,
                                    flags.delete_extra ? transfer::Links::kBoth : transfer::Links::kFollow, false)));
  const transfer::SyncRules rules = RulesOf(flags, filter);
  SourceFolders folders(from, filter);
  BlockedCopies blocked("/" + to_folder);
  const bool may_block = to.local() && flags.delete_extra && !context.globals.dry_run;
  SyncSides sides{.flags = flags,
                  .share = share,
                  .source = source,
                  .to_folder = to_folder,
                  .there = there,
                  .unread = unread,
                  .run = run,
                  .copier = copier,
                  .extra = extra,
                  .folders = folders,
                  .blocked = may_block ? &blocked : nullptr,
                  .unsettled = from.local() ? unsettled : nullptr};
  Status planned = transfer::PlanSync(have, there, rules, [&](transfer::SyncAction action) -> Status {
    sides.Take(std::move(action));
    return {};
  });
  if (planned) planned = CheckFound(sides, have, filter);
  if (planned) {
    auto copy = [&](transfer::Item item) { copier.AddBeneath(source, to_folder, std::move(item)); };
    planned = EndSync(run, extra, blocked, copy);
  }
  const int exit = run.Finish(planned);
  // Another process that has a share makes folders meanwhile, and then files in them.
  if (exit == kExitOk && flags.delete_extra && to.local() && flags.share.empty() && !context.globals.dry_run) {
    RemoveEmptyFolders("/" + to_folder, [&](const std::string& name) { return folders.Keeps(name); });
  }
  return exit;
}

}  // namespace

void AddSyncCommand(CLI::App& app, Context& context) {
  auto flags = std::make_shared<CopyFlags>();
  CLI::App* sync =
      AddCommand(app, context, "sync", "Copy the files of a folder or prefix that differ at the destination",
                 "  millrace sync data/ s3://bucket/data/\n"
                 "  millrace sync --delete s3://bucket/data/ /mnt/nvme/data/\n"
                 "  millrace sync --delete --max-delete 100 data/ s3://bucket/data/\n"
                 "  millrace sync hf://gpt2@main/ s3://models/gpt2/   # from Hugging Face's hub\n"
                 "  millrace sync --at 2h --checksum --delete s3://a/x/ s3://a/x/   # back to two hours ago\n"
                 "  millrace sync --source-endpoint-url http://old:9000 s3://a/x/ s3://b/x/\n"
                 "  millrace sync s3://a/x/ s3://b/x/ --share 0/2   # on one machine, and --share 1/2 on another\n"
                 "  millrace sync --watch logs/ s3://bucket/logs/   # again and again, until Ctrl-C\n"
                 "  millrace sync --size-only --exclude '*.tmp' s3://a/x/ s3://b/x/\n",
                 [&context, flags] {
                   return WithConnection(context, [&](object::Connection& connection) {
                     return flags->watch ? WatchSync(context, *flags,
                                                     [&](UnsettledFiles& unsettled) {
                                                       return Sync(context, connection, *flags, &unsettled);
                                                     })
                                         : Sync(context, connection, *flags, nullptr);
                   });
                 });
  sync->add_option("PLACE", flags->places, "The source folder or prefix, then the destination")
      ->type_name("SOURCE DESTINATION")
      ->required()
      ->expected(2);
  flags->is_sync = true;
  sync->add_flag("--delete", flags->delete_extra, "Delete what the source does not have");
  sync->add_flag("--empty-folders", flags->empty_folders, "Copy empty folders too");
  sync->add_option("--max-delete", flags->max_delete,
                   "With --delete: delete nothing if more than this many names would be deleted");
  sync->add_flag("--allow-empty-source", flags->allow_empty_source,
                 "With --delete: allow a source without files, which empties the destination");
  sync->add_flag("--size-only", flags->size_only, "Skip files of the same size");
  sync->add_flag("--checksum", flags->when.checksum, "Copy files whose contents differ, by the store's checksums");
  sync->add_flag("--exact-timestamps", flags->exact_timestamps, "Copy files whose times differ, not only newer ones");
  AddShareFlag(*sync, flags->share);
  flags->AddWatch(*sync);
  flags->select.AddTo(*sync);
  flags->select.AddBookkeepingTo(*sync);
  flags->select.view.AddTo(*sync, false);
  flags->AddCommon(*sync);
}

}  // namespace millrace::cli
