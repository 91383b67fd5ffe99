// Parts that all commands on objects share: where a URL or path leads, which items the arguments select, and a batch of
// transfers with its report.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "apps/millrace/cli/cli.h"
#include "apps/millrace/cli/view_flags.h"
#include "apps/millrace/objects/object_options.h"
#include "millrace/object/connection.h"
#include "millrace/transfer/copy/copy.h"
#include "millrace/transfer/copy/md5_pool.h"
#include "millrace/transfer/plan/batch.h"
#include "millrace/transfer/plan/glob.h"
#include "millrace/transfer/plan/items.h"

namespace millrace::cli {

/// A URL or path that the user typed, with its open store. A local path is a key in the file store of the folder "/".
struct ObjectPlace {
  object::Url url;
  std::shared_ptr<object::Store> store;
  std::string key;

  bool local() const { return url.scheme == object::Url::Scheme::kFile; }
  /// Returns "s3://bucket/key", "hf://…" or "/path", for messages and results.
  std::string Name(const std::string& of_key) const;
  std::string Name() const { return Name(key); }
};
/// Parses a URL or path, and opens its store, or the old versions that `view` names. Errors: those of object::Locate()
/// and ViewFlags::Apply().
Result<ObjectPlace> OpenPlace(object::Connection& connection, const std::string& text, const ViewFlags& view = {});

/// Flags of the commands that take many sources.
struct SelectFlags {
  bool recursive = false;
  bool raw = false;  ///< wildcards are ordinary characters
  bool from_stdin = false;
  bool bookkeeping = false;  ///< includes Millrace's own files, in folders named .millrace
  ViewFlags view;            ///< --at and --version-id
  bool skips_links = false;  ///< leaves out symbolic links
  bool removes = false;      ///< the command removes its items: it removes a symbolic link, not the link's target
  std::vector<transfer::FilterRule> rules;  ///< --include and --exclude, in their order
  void AddTo(CLI::App& command);
  /// Adds --all, for commands that leave out Millrace's own files.
  void AddBookkeepingTo(CLI::App& command);
  /// Returns the arguments in `given`, followed by the lines of standard input if --files-from-stdin was given.
  Result<std::vector<std::string>> Sources(std::span<const std::string> given) const;
};

/// The items that one source argument selects: one object (`single`), or all keys that begin with `prefix` and pass
/// `glob` and `filter`.
struct Selection {
  ObjectPlace place;
  bool single = false;                 ///< the selection is one object or file: place.key
  std::string prefix;                  ///< all keys of the selection begin with this prefix
  std::size_t name_from = 0;           ///< the length of the part of a key that is left out of the item's name
  std::optional<transfer::Glob> glob;  ///< the pattern that the whole key must match; nothing: any key
  transfer::NameFilter filter;         ///< the rules that the name must pass
  transfer::Links links = transfer::Links::kFollow;
  bool is_link = false;  ///< the one object is a symbolic link, which the command removes
  /// Returns the folder of the items, as a prefix of their keys: empty, or with a slash at its end.
  std::string Folder() const;
  /// Returns whether a local path belongs to the selection. For paths that could not be read: those of the selection
  /// are reported as problems. The path of a folder ends with a slash.
  bool Wants(const std::string& path) const;
};
/// Returns the selection of one argument. A trailing slash, --recursive, an empty key or a wildcard selects many items;
/// anything else selects one.
/// Errors: kInvalidArgument for a folder without a slash and --recursive, for a device, a FIFO or a socket, and for
/// many objects with --version-id;
/// kNotFound for a local folder that is missing.
Result<Selection> Select(object::Connection& connection, const std::string& text, const SelectFlags& flags);

/// Calls `visit` for each item of the selection, in order. Calls `on_problem` for each local name that cannot be read
/// (TreeWalker::Options::on_problem). Warns if the filter leaves out every item. Errors: kNotFound if nothing matches,
/// unless the selection is an empty bucket.
Status ForEach(const Selection& selection, const object::Call& call,
               const std::function<void(const std::string&, const Error&)>& on_problem,
               const std::function<Status(transfer::Item)>& visit);

/// Warns the user that the filter leaves out every item of the place.
void WarnOfEmptyFilter(const ObjectPlace& place);

/// Runs the transfers of a command and reports them: one line or JSON object for each item, progress on a terminal, the
/// failures, a summary and the exit status. One owner.
class TransferRun {
 public:
  /// `verb` begins each line, such as "cp" or "rm". With --dry-run, prints the items and transfers nothing.
  /// `reports_idle`: there is a summary also if nothing had to be done.
  TransferRun(const Context& context, std::string verb, bool reports_idle = true);
  ~TransferRun();

  object::Call call() const { return {.stop = context_.stop}; }
  transfer::CopySettings Settings(std::optional<std::uint64_t> part_bytes);

  /// Adds one item. If `source` is empty, the item is the removal of the destination.
  void Add(std::string source, std::string destination, std::uint64_t size, transfer::Batch::Job job);
  /// Adds one request that removes many items. `as_destination`: they are reported as destinations, not as sources.
  void AddMany(std::vector<std::string> names, bool as_destination, transfer::Batch::GroupJob job);
  void AddFailure(const std::string& source, const std::string& destination, const Error& error);
  /// Counts an item that needs no transfer.
  void Skip() { ++skipped_; }
  /// Waits for the items that have been added. More may follow.
  void Wait() { batch_->Wait(); }
  /// Returns whether the work on an item has failed so far. Items of AddFailure do not count.
  bool failed() const { return batch_->counters().items_failed > not_begun_; }
  /// Waits for all items, calls `last` if there is one, and prints the summary. `planned`: the error that ended the
  /// list of items early, if any. Returns the exit status.
  int Finish(const Status& planned, const std::function<void()>& last = {});

 private:
  void Report(const transfer::Batch::Outcome& outcome);
  void PrintItem(const std::string& source, const std::string& destination, std::uint64_t size, std::string_view status,
                 const Error* error);

  const Context& context_;
  const std::string verb_;
  const bool reports_idle_;
  const TimePoint started_ = SystemClock().Now();
  std::atomic<std::uint64_t> skipped_ = 0;
  std::uint64_t dry_items_ = 0, bytes_done_ = 0;
  std::uint64_t not_begun_ = 0;  ///< items that failed before there was work on them
  int last_exit_ = 0;
  std::uint64_t cancelled_ = 0;  ///< items that a stop ended or kept from starting
  std::uint64_t unneeded_ = 0;   ///< items that needed no transfer, which the batch has counted as done
  bool show_progress_ = false;
  transfer::Md5Pool md5_;  ///< outlives the jobs of the batch
  std::unique_ptr<transfer::Batch> batch_;
  std::unique_ptr<class ProgressLine> progress_;
};

/// Deletes keys of one place in requests of a thousand keys, the most that S3 takes. Deletes local files through
/// LocalRemover. Not thread-safe.
class Deletions {
 public:
  /// `run` and `place` must live until TransferRun::Finish() has returned. All keys begin with `folder` (see
  /// Selection::Folder). `as_destination`: the user did not name the keys (sync --delete).
  Deletions(TransferRun& run, const ObjectPlace& place, std::string folder, bool as_destination)
      : run_(run), place_(place), folder_(std::move(folder)), as_destination_(as_destination) {}
  void Add(std::string key);
  void Flush();

 private:
  TransferRun& run_;
  const ObjectPlace& place_;
  const std::string folder_;
  const bool as_destination_;
  std::vector<std::string> keys_;
};

/// The connection for the sources of copies.
struct SourceConnection {
  std::unique_ptr<object::Connection> own;  ///< null: the destination's serves
  object::Connection* connection = nullptr;
  /// The source has another endpoint or account, so that the server of the destination cannot copy.
  bool is_elsewhere = false;
};
/// Opens a connection for the sources if they have an endpoint, an account or an SSE-C key of their own.
/// Errors: kInvalidArgument if `flags` are given and all `sources` are local; those of opening.
Result<SourceConnection> ConnectSources(const Context& context, object::Connection& connection,
                                        const SourceFlags& flags, std::span<const std::string> sources,
                                        const std::string& destination);

/// Writes objects to standard output, one after the other. Ends when standard output is closed.
Result<int> CatObjects(const Context& context, object::Connection& connection, const std::vector<std::string>& urls,
                       const SelectFlags& flags);
/// Writes standard input to one object.
Result<int> WriteStream(const Context& context, object::Connection& connection, const std::string& url,
                        const WriteFlags& flags, bool no_clobber);

/// Runs `body` with an open connection; reports its error.
int WithConnection(const Context& context, const std::function<Result<int>(object::Connection&)>& body);

void AddCopyCommands(CLI::App& app, Context& context);  // cp mv
void AddSyncCommand(CLI::App& app, Context& context);
void AddListCommands(CLI::App& app, Context& context);    // ls du head
void AddStreamCommands(CLI::App& app, Context& context);  // cat pipe
void AddManageCommands(CLI::App& app, Context& context);  // rm presign mb rb
void AddDuplicateCommand(CLI::App& app, Context& context);
void AddRestoreCommand(CLI::App& app, Context& context);
void AddRunCommand(CLI::App& app, Context& context);

}  // namespace millrace::cli
