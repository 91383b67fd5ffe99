// Places, selections and runs: the common part of the object verbs.
#include "apps/millrace/objects/object_commands.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <map>

#include "apps/millrace/cli/progress.h"
#include "millrace/base/files/special_file.h"
#include "millrace/base/text.h"
#include "millrace/object/blocking.h"
#include "millrace/transfer/local/local_removal.h"

namespace millrace::cli {
namespace {

namespace fs = std::filesystem;

// Each thread waits for one object. Parts of large objects are transferred in parallel besides.
constexpr int kMaxWorkers = 64;
constexpr int kParallelParts = 8;
constexpr std::size_t kDeletesPerRequest = 1000;  // the most that S3 takes in one request

/// Returns the folder with the journals of interrupted uploads; "" if the user has no home folder.
std::string JournalFolder() {
  const char* state = std::getenv("XDG_STATE_HOME");
  const char* home = std::getenv("HOME");
  if (state && *state == '/') return fs::path(state) / "millrace" / "transfers";
  return home && *home == '/' ? fs::path(home) / ".local/state/millrace/transfers" : fs::path();
}

bool IsLink(const std::string& key) {
  std::error_code error;
  return fs::is_symlink("/" + (key.ends_with('/') ? key.substr(0, key.size() - 1) : key), error);
}

/// Refuses a source that is neither a file nor a folder.
Status CheckNotSpecial(const std::string& path, bool removes) {
  const std::string_view type = SpecialTypeAt(AT_FDCWD, path);
  if (type.empty()) return {};
  return Fail(Code::kInvalidArgument, "{} is {}, and only files and folders are copied or removed{}", path, type,
              removes ? "; it stays" : "; `millrace cp - DESTINATION` copies what standard input gives");
}

/// Returns the status of an item from the outcome of its removal. A missing file counts as removed.
Status StatusOf(const Result<transfer::LocalRemover::Outcome>& removed, const std::string& name) {
  if (!removed) return Fail(removed.error());
  if (*removed != transfer::LocalRemover::Outcome::kBehindLink) return {};
  return Fail(Code::kStale, "{} is behind a symbolic link, which is not followed to remove files; it stays", name);
}

}  // namespace

std::string ObjectPlace::Name(const std::string& of_key) const {
  return local() ? "/" + of_key : object::Url{url.scheme, url.bucket, of_key}.ToString();
}

Result<ObjectPlace> OpenPlace(object::Connection& connection, const std::string& text, const ViewFlags& view) {
  ObjectPlace place{.url = MR_TRY(object::ParseUrl(text)), .store = nullptr, .key = ""};
  object::Location location = MR_TRY(object::Locate(connection, text));
  MR_TRY(view.Apply(place.url, location));
  place.store = std::move(location.store);
  place.key = std::move(location.key);
  return place;
}

void SelectFlags::AddTo(CLI::App& command) {
  command.add_flag("-r,--recursive", recursive, "Include everything below a folder or prefix");
  command.add_flag("--raw", raw, "Treat *, ? and [ in sources as ordinary characters");
  command.add_flag("--files-from-stdin", from_stdin, "Read more sources from standard input, one a line");
  auto add_filter = [&](const char* flag, bool includes, const char* description) {
    command
        .add_option_function<std::string>(
            flag, [this, includes](const std::string& pattern) { rules.push_back({includes, pattern}); }, description)
        ->trigger_on_parse();  // at each occurrence, so that the order of both flags is known
  };
  add_filter("--include", true,
             "Take names that match this pattern; as the first filter: only these. The last filter that matches a name "
             "decides (repeatable)");
  add_filter("--exclude", false, "Leave out names that match this pattern (repeatable)");
}

void SelectFlags::AddBookkeepingTo(CLI::App& command) {
  command.add_flag("-a,--all", bookkeeping, "Include Millrace's own files, in folders named .millrace");
}

Result<std::vector<std::string>> SelectFlags::Sources(std::span<const std::string> given) const {
  std::vector<std::string> sources(given.begin(), given.end());
  for (std::string line; from_stdin && std::getline(std::cin, line);) {
    if (!line.empty()) sources.push_back(std::move(line));
  }
  if (sources.empty()) return Fail(Code::kInvalidArgument, "give at least one source");
  return sources;
}

std::string Selection::Folder() const {
  const std::string& keys = single ? place.key : prefix;
  return keys.substr(0, keys.rfind('/') + 1);  // npos + 1 == 0
}

bool Selection::Wants(const std::string& path) const {
  const std::string name = path.substr(std::min(name_from, path.size()));
  if (path.empty() || path.ends_with('/')) return !filter.ExcludesFolder(name.substr(0, name.size() - !name.empty()));
  return (!glob || glob->Matches(path)) && filter.Passes(name);
}

Result<Selection> Select(object::Connection& connection, const std::string& text, const SelectFlags& flags) {
  Selection selection{.place = MR_TRY(OpenPlace(connection, text, flags.view)),
                      .filter = transfer::NameFilter(flags.rules, flags.bookkeeping),
                      .links = flags.removes       ? transfer::Links::kList
                               : flags.skips_links ? transfer::Links::kSkip
                                                   : transfer::Links::kFollow};
  const std::string& key = selection.place.key;
  if (!flags.view.version.empty() && (flags.recursive || (!flags.raw && transfer::HasWildcard(key)))) {
    return Fail(Code::kInvalidArgument, "--version-id is of one object, and {} may be many", text);
  }
  if (!flags.raw && transfer::HasWildcard(key)) {
    selection.glob.emplace(key);
    selection.prefix = selection.glob->literal_prefix();
    selection.name_from = selection.prefix.rfind('/') + 1;  // npos + 1 == 0
    return selection;
  }
  if (flags.removes && selection.place.local() && IsLink(key)) {
    if (key.ends_with('/')) {
      return Fail(Code::kInvalidArgument,
                  "{} is a symbolic link; leave the slash out to remove the link, and what it leads to stays", text);
    }
    selection.single = selection.is_link = true;
    return selection;
  }
  if (flags.skips_links && selection.place.local() && !key.ends_with('/') && IsLink(key)) {
    return Fail(Code::kInvalidArgument, "{} is a symbolic link, which --no-follow-symlinks leaves out", text);
  }
  if (selection.place.local()) MR_TRY(CheckNotSpecial("/" + key, flags.removes));
  bool folder = selection.place.local() && fs::is_directory("/" + key);
  bool many = flags.recursive || key.empty() || key.ends_with('/');
  if (folder && !many) {
    return Fail(Code::kInvalidArgument, "{} is a folder; add --recursive or a slash at its end", text);
  }
  if (!many || (flags.recursive && selection.place.local() && fs::is_regular_file("/" + key))) {
    selection.single = true;
    return selection;
  }
  if (selection.place.local() && !folder)
    return Fail(Code::kNotFound, "there is no folder {}; check the path", selection.place.Name());
  selection.prefix = key.empty() || key.ends_with('/') ? key : key + "/";
  selection.name_from = selection.prefix.size();
  return selection;
}

Status ForEach(const Selection& selection, const object::Call& call,
               const std::function<void(const std::string&, const Error&)>& on_problem,
               const std::function<Status(transfer::Item)>& visit) {
  const ObjectPlace& place = selection.place;
  if (selection.is_link) return visit({place.key.substr(place.key.rfind('/') + 1), {.key = place.key}});
  if (selection.single) {
    auto info = MR_TRY(object::Head(*place.store, place.key, call));
    if (!info) return Fail(Code::kNotFound, "{} does not exist; check the name with `millrace ls`", place.Name());
    return visit({place.key.substr(place.key.rfind('/') + 1), *std::move(info)});
  }
  const auto on_wanted = [&](const std::string& path, const Error& error) {
    if (selection.Wants(path)) on_problem(path, error);
  };
  std::unique_ptr<transfer::ItemStream> items =
      place.local()
          ? MR_TRY(transfer::ListLocal(selection.prefix, selection.name_from, on_wanted, call, selection.links))
          : transfer::ListStore(*place.store, selection.prefix, selection.name_from, call);
  bool any = false, any_passes = false;
  while (auto item = MR_TRY(items->Next())) {
    const bool link = item->info.etag == object::TreeWalker::kLinkETag && item->info.key.ends_with('/');
    const std::string_view key(item->info.key.data(), item->info.key.size() - (link ? 1 : 0));
    if (selection.glob && !selection.glob->Matches(key)) continue;
    any = true;
    if (!selection.filter.Passes(item->name)) continue;
    any_passes = true;
    MR_TRY(visit(*std::move(item)));
  }
  if (any && !any_passes && selection.filter.has_rules()) WarnOfEmptyFilter(place);
  if (any || place.key.empty()) return {};  // an empty bucket is not an error
  return Fail(Code::kNotFound, "nothing matches {}; check the pattern with `millrace ls`", place.Name());
}

void WarnOfEmptyFilter(const ObjectPlace& place) {
  PrintError("millrace: --include and --exclude leave out all that is at {}\n", place.Name());
}

TransferRun::TransferRun(const Context& context, std::string verb, bool reports_idle)
    : context_(context), verb_(std::move(verb)), reports_idle_(reports_idle) {
  const Globals& globals = context.globals;
  show_progress_ = !globals.dry_run && WantsProgress(globals.progress, globals.quiet, globals.json);
  batch_ = std::make_unique<transfer::Batch>(std::min(globals.connect.concurrency, kMaxWorkers), context.stop,
                                             [this](const transfer::Batch::Outcome& outcome) { Report(outcome); });
  if (show_progress_) progress_ = std::make_unique<ProgressLine>(batch_->counters());
}

TransferRun::~TransferRun() = default;

transfer::CopySettings TransferRun::Settings(std::optional<std::uint64_t> part_bytes) {
  return {.part_bytes = part_bytes.value_or(kPartBytes),
          .parallel_parts = std::min(context_.globals.connect.concurrency, kParallelParts),
          .larger_download_parts = !part_bytes,
          .md5 = &md5_,
          .journal_folder = JournalFolder(),
          .on_bytes = [this](std::uint64_t bytes) { batch_->counters().bytes_moved += bytes; },
          .on_resumed = [this](std::uint64_t bytes) { batch_->counters().bytes_resumed += bytes; }};
}

void TransferRun::Add(std::string source, std::string destination, std::uint64_t size, transfer::Batch::Job job) {
  if (context_.globals.dry_run) {
    ++dry_items_;
    return PrintItem(source, destination, size, "dry_run", nullptr);
  }
  batch_->Add(std::move(source), std::move(destination), size, std::move(job));
}

void TransferRun::AddMany(std::vector<std::string> names, bool as_destination, transfer::Batch::GroupJob job) {
  if (context_.globals.dry_run) {
    dry_items_ += names.size();
    for (const std::string& name : names)
      PrintItem(as_destination ? "" : name, as_destination ? name : "", 0, "dry_run", nullptr);
    return;
  }
  batch_->AddMany(std::move(names), as_destination, std::move(job));
}

void Deletions::Add(std::string key) {
  keys_.push_back(std::move(key));
  if (keys_.size() == kDeletesPerRequest) Flush();
}

void Deletions::Flush() {
  if (keys_.empty()) return;
  std::vector<std::string> keys = std::exchange(keys_, {}), names;
  for (const std::string& key : keys) names.push_back(place_.Name(key));
  run_.AddMany(std::move(names), as_destination_,
               [&place = place_, folder = folder_, keys = std::move(keys)](const object::Call& call) {
                 std::vector<Status> outcomes(keys.size());
                 if (place.local()) {
                   auto remover = transfer::LocalRemover::Open("/" + folder);
                   if (!remover) return std::vector<Status>(keys.size(), Status(std::unexpected(remover.error())));
                   for (std::size_t i = 0; i < keys.size(); ++i) {
                     outcomes[i] = StatusOf(remover->Remove(keys[i].substr(folder.size())), place.Name(keys[i]));
                   }
                   return outcomes;
                 }
                 auto failures = object::DeleteMany(*place.store, keys, call);
                 if (!failures) return std::vector<Status>(keys.size(), Status(std::unexpected(failures.error())));
                 std::map<std::string_view, const Error*> failed;
                 for (const object::DeleteFailure& failure : *failures) failed.emplace(failure.key, &failure.error);
                 for (std::size_t i = 0; i < keys.size(); ++i) {
                   if (auto found = failed.find(keys[i]); found != failed.end())
                     outcomes[i] = std::unexpected(*found->second);
                 }
                 return outcomes;
               });
}

void TransferRun::AddFailure(const std::string& source, const std::string& destination, const Error& error) {
  ++not_begun_;
  batch_->AddFailure(source, destination, error);
}

void TransferRun::Report(const transfer::Batch::Outcome& outcome) {
  const Error* error = outcome.status ? nullptr : &outcome.status.error();
  if (error && error->code() == Code::kCancelled) {
    ++cancelled_;
    return;
  }
  if (error) last_exit_ = ToExitStatus(error->code());
  if (!outcome.needed) {
    ++unneeded_;
    return Skip();
  }
  if (!error) bytes_done_ += outcome.size;
  PrintItem(outcome.source, outcome.destination, outcome.size, error ? "failed" : "ok", error);
}

void TransferRun::PrintItem(const std::string& source, const std::string& destination, std::uint64_t size,
                            std::string_view status, const Error* error) {
  bool deletion = source.empty();
  std::string line = verb_ + " " + (deletion ? "delete" : source) + (destination.empty() ? "" : " " + destination);
  if (deletion && status == "ok") status = "deleted";
  if (error && show_progress_) WriteErrorControls("\r\033[K");
  if (error) PrintError("millrace: {}{}: {}\n", context_.origin, line, error->ToString());
  if (context_.globals.json) {
    Json object = {{"source", source}, {"destination", destination}, {"size", size}, {"status", status}};
    if (error) object["error"] = error->ToString();
    PrintJsonLine(object);
  } else if (!error && !context_.globals.quiet && !show_progress_) {
    Print("{}\n", line);
  }
}

int TransferRun::Finish(const Status& planned, const std::function<void()>& last) {
  batch_->Finish();
  if (last) last();
  progress_.reset();
  const transfer::BatchCounters& counters = batch_->counters();
  // Items that a stop kept from starting have not failed.
  const std::uint64_t done = counters.items_done - cancelled_, failed = counters.items_failed - cancelled_;
  const std::uint64_t bytes = bytes_done_;
  double seconds = std::chrono::duration<double>(SystemClock().Now() - started_).count();
  const bool reports = reports_idle_ || done > unneeded_;
  if (context_.globals.json && reports) {
    PrintJsonLine({{"event", "summary"},
                   {"items", done - unneeded_ + dry_items_},
                   {"failed", failed},
                   {"stopped", cancelled_},
                   {"unchanged", skipped_.load()},
                   {"bytes", bytes},
                   {"resumed_bytes", counters.bytes_resumed.load()},
                   {"seconds", seconds}});
  } else if (reports && !context_.globals.json && !context_.globals.quiet && !context_.globals.dry_run &&
             (done > 1 || skipped_ > 0)) {
    std::string moved = bytes == 0 ? ""
                                   : fmt::format(", {} at {}/s", FormatBytes(bytes),
                                                 FormatBytes(static_cast<std::uint64_t>(bytes / seconds)));
    const std::uint64_t copied = done - failed - unneeded_;
    PrintError("{}: {} item{}{} in {:.2f} s{}{}{}\n", verb_, FormatCount(copied), copied == 1 ? "" : "s", moved,
               seconds, skipped_ ? fmt::format(", {} unchanged", FormatCount(skipped_.load())) : "",
               failed ? fmt::format(", {} FAILED", FormatCount(failed)) : "",
               cancelled_ > 0 ? fmt::format(", {} not begun", FormatCount(cancelled_)) : "");
  }
  if (context_.stop.stop_requested() || cancelled_ > 0) {
    PrintError("millrace: interrupted; finished items stay, and no item is half-written. {}\n",
               verb_ == "sync" ? "Run the same command again to continue"
                               : "Run the same command again to continue a large file; `millrace sync` copies only "
                                 "the files that are missing");
    return ToExitStatus(Code::kCancelled);
  }
  if (!planned) {
    int exit = ReportError(context_, planned.error());
    return done > failed ? kExitPartial : exit;
  }
  if (failed == 0) return kExitOk;
  return counters.items_known == 1 && skipped_ == 0 ? last_exit_ : kExitPartial;
}

Result<SourceConnection> ConnectSources(const Context& context, object::Connection& connection,
                                        const SourceFlags& flags, std::span<const std::string> sources,
                                        const std::string& destination) {
  auto is_s3 = [](const std::string& text) {
    const auto url = object::ParseUrl(text);
    return url && url->scheme == object::Url::Scheme::kS3;
  };
  if (flags.any() && !sources.empty() && std::ranges::none_of(sources, is_s3)) {
    return Fail(Code::kInvalidArgument,
                "--source-endpoint-url, --source-profile and --source-region are for sources at s3://, and {} is none",
                sources.front());
  }
  const bool into_store = is_s3(destination);
  const bool own_key = !context.globals.sse_c_source_key_file.empty() && into_store;
  if (!flags.any() && !own_key) return SourceConnection{.connection = &connection};
  Context outer = context;
  flags.Apply(outer.globals.connect);
  SourceConnection source{.own = MR_TRY(outer.Connect(into_store ? Context::Role::kSources : Context::Role::kAll))};
  source.connection = source.own.get();
  if (!into_store || !flags.any()) return source;
  source.is_elsewhere =
      outer.globals.connect.profile != context.globals.connect.profile ||
      MR_TRY(source.connection->OpenService())->Identity() != MR_TRY(connection.OpenService())->Identity();
  return source;
}

int WithConnection(const Context& context, const std::function<Result<int>(object::Connection&)>& body) {
  std::unique_ptr<object::Connection> own;
  if (!context.shared_connection) {
    auto connection = context.Connect();
    if (!connection) return ReportError(context, connection.error());
    own = *std::move(connection);
  }
  auto exit = body(own ? *own : *context.shared_connection);
  return exit ? *exit : ReportError(context, exit.error());
}

void AddObjectCommands(CLI::App& app, Context& context) {
  AddListCommands(app, context);
  AddCopyCommands(app, context);
  AddSyncCommand(app, context);
  AddStreamCommands(app, context);
  AddManageCommands(app, context);
  AddDuplicateCommand(app, context);
  AddRestoreCommand(app, context);
  if (!context.shared_connection) AddRunCommand(app, context);  // no runs within runs
}

}  // namespace millrace::cli
