// `millrace mount` and `millrace umount`.
#include <poll.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "apps/millrace/cli.h"
#include "apps/millrace/mount_caretaker.h"
#include "apps/millrace/mount_daemon.h"
#include "apps/millrace/mount_fuse.h"
#include "apps/millrace/mount_point.h"
#include "apps/millrace/mount_stats.h"
#include "millrace/base/files/managed_folder.h"
#include "millrace/base/process/process_name.h"
#include "millrace/base/text.h"
#include "millrace/cache/block_cache.h"
#include "millrace/metrics/endpoint.h"
#include "millrace/object/blocking.h"
#include "millrace/object/open/all_buckets.h"
#include "millrace/object/support/conditions.h"
#include "millrace/vfs/rename/rename_recovery.h"
#include "millrace/vfs/tree.h"
#include "millrace/vfs/write/staging_area.h"

namespace millrace::cli {
namespace {

/// What each thread takes beyond kProcessBytes: a request and a reply.
constexpr std::uint64_t kThreadBytes = 2 * kMiB;
constexpr Duration kForever = std::chrono::hours(24 * 365 * 10);

struct MountFlags {
  std::string url, directory, prefix, cache_directory, log_file, metadata_ttl, negative_ttl, file_mode, directory_mode,
      stored_attributes = "auto", staging_directory, metrics_listen, metrics_key_file, check_timeout = "10s",
      close = "sync", publish_delay = "1s", flush_timeout = "5m";
  std::uint64_t staging_limit = 0;
  std::uint64_t max_cache = 20 * kGiB, read_part = 8 * kMiB, write_part = 8 * kMiB, read_ahead = 1 * kMiB;
  bool read_only = false, allow_other = false, foreground = false, check = false, recover = false;
  bool strict = false, allow_delete = false, allow_overwrite = false, no_delete = false, no_overwrite = false;
  bool metrics_insecure = false;
  uid_t uid = ::geteuid();
  gid_t gid = ::getegid();
  int threads = 16, parallel_listing = 1, status_fd = -1;
};

Result<mode_t> ParseMode(const std::string& text, mode_t otherwise) {
  if (text.empty()) return otherwise;
  char* end = nullptr;
  unsigned long mode = std::strtoul(text.c_str(), &end, 8);
  if (*end != '\0' || mode > 0777)
    return Fail(Code::kInvalidArgument, "\"{}\" is no mode; give one such as 0640", text);
  return static_cast<mode_t>(mode);
}

Result<Duration> ParseTtl(const std::string& text, Duration otherwise) {
  if (text.empty()) return otherwise;
  if (text == "forever" || text == "indefinite") return kForever;
  if (text == "none" || text == "0") return Duration::zero();
  return ParseDuration(text);
}

Result<vfs::Options> TreeOptions(const MountFlags& flags, const object::Url& url, const std::string& key,
                                 const Logger& log) {
  vfs::Options options{.prefix = key, .read_only = flags.read_only, .log = log};
  if (!options.prefix.empty() && !options.prefix.ends_with('/')) options.prefix += '/';
  options.prefix += flags.prefix;
  if (!options.prefix.empty() && !options.prefix.ends_with('/')) options.prefix += '/';
  if (options.prefix.starts_with('/')) return Fail(Code::kInvalidArgument, "--prefix must not begin with '/'");
  options.buckets_at_top = url.scheme == object::Url::Scheme::kS3 && url.bucket.empty() && options.prefix.empty();
  options.metadata_ttl = MR_TRY(ParseTtl(flags.metadata_ttl, options.metadata_ttl));
  options.negative_ttl =
      MR_TRY(ParseTtl(flags.negative_ttl, flags.metadata_ttl.empty() ? options.negative_ttl : options.metadata_ttl));
  options.revalidate_open = flags.metadata_ttl.empty();
  options.owner = ProcessName();
  options.owner_alive = IsProcessAlive;
  options.uid = flags.uid;
  options.gid = flags.gid;
  options.file_permissions = MR_TRY(ParseMode(flags.file_mode, 0644));
  options.directory_permissions = MR_TRY(ParseMode(flags.directory_mode, 0755));
  using Policy = vfs::StoredAttributesPolicy;
  options.stored_attributes = flags.stored_attributes == "always"  ? Policy::kAlways
                              : flags.stored_attributes == "never" ? Policy::kNever
                                                                   : Policy::kAuto;
  options.allow_delete = !flags.no_delete && (!flags.strict || flags.allow_delete);
  options.allow_overwrite = !flags.no_overwrite && (!flags.strict || flags.allow_overwrite);
  options.read_part_bytes = flags.read_part;
  options.parallel_listing = flags.parallel_listing;
  options.write_part_bytes = flags.write_part;
  options.close_async = flags.close == "async";
  options.publish_delay = MR_TRY(ParseDuration(flags.publish_delay));
  return options;
}

/// Where releases before managed folders staged. Said, so that nothing is forgotten there; the files of another user,
/// who may have made it, are none of ours.
void TellOfEarlierStaging(const std::string& url, const std::string& target, const Logger& log) {
  const std::string folder = fmt::format("/var/tmp/millrace-{}/staging", ::geteuid());
  struct stat info{};
  if (::lstat(folder.c_str(), &info) != 0 || !S_ISDIR(info.st_mode) || info.st_uid != ::geteuid()) return;
  const auto left = vfs::StagingArea::LookFor(folder, target);
  if (left.files == 0) return;
  log.Warning("an earlier release left staged files; publish them with --recover and --staging-dir",
              {{"folder", folder}, {"files", left.files}, {"url", url}});
}

/// A quarter of what is free, so that other programs find room too.
std::uint64_t DefaultStagingLimit(std::filesystem::path directory) {
  std::error_code error;
  while (!std::filesystem::exists(directory, error) && directory.has_relative_path())
    directory = directory.parent_path();
  const auto space = std::filesystem::space(directory, error);
  return error ? 1 * kGiB : std::max<std::uint64_t>(space.available / 4, 64 * kMiB);
}

/// The bucket, or with `s3://` alone all buckets.
Result<object::Location> OpenRoot(object::Connection& connection, const object::Url& url) {
  if (url.scheme == object::Url::Scheme::kS3 && url.bucket.empty()) {
    return object::Location{MR_TRY(object::OpenAllBuckets(connection)), ""};
  }
  return object::Locate(connection, url.ToString());
}

Status AddStaging(const MountFlags& flags, const std::string& target, vfs::Options& options) {
  options.staging_target = target;
  if (options.read_only) return {};
  if (flags.staging_directory.empty()) {
    options.staging_directory = MR_TRY(DefaultCacheFolder("--staging-dir")) / "staging";
    TellOfEarlierStaging(flags.url, target, options.log);
  } else {
    options.staging_directory = std::filesystem::absolute(flags.staging_directory);
  }
  options.staging_limit =
      flags.staging_limit > 0 ? flags.staging_limit : DefaultStagingLimit(options.staging_directory);
  return {};
}

Status CheckRoot(const object::Url& url, const std::string& prefix) {
  if (url.scheme != object::Url::Scheme::kFile || std::filesystem::is_directory("/" + prefix)) return {};
  return Fail(Code::kNotFound, "{} is no folder", url.ToString());
}

/// A file that waits for its publication holds a descriptor, and so does each connection.
void RaiseDescriptorLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);  // what is allowed anyway
}

/// Refuses a store that ignores the conditions of writes. A mount of all buckets asks in the first one where it may
/// put.
Status RequireConditions(const object::Location& root, const vfs::Options& options, std::stop_token stop) {
  // For all questions together: there may be many buckets, and none that may be written. Where nothing is found out,
  // the mount goes on, and the first write reports what is wrong.
  constexpr auto kPatience = std::chrono::seconds(15);
  const object::Call call{.stop = std::move(stop), .deadline = Deadline::After(SystemClock(), kPatience)};
  std::vector<std::string> prefixes = {options.prefix};
  if (options.buckets_at_top) {
    auto buckets = object::List(*root.store, {.delimiter = "/"}, call);
    if (!buckets) return {};
    prefixes = std::move(buckets->common_prefixes);
  }
  for (const std::string& prefix : prefixes) {
    if (!object::ProbeConditions(*root.store, prefix, call)) continue;
    return object::RequireConditions(*root.store, prefix, "mount it with --read-only", call);
  }
  return {};
}

Status ServeMount(const Context& context, const MountFlags& flags) {
  RaiseDescriptorLimit();
  Logger log = context.log();
  if (flags.status_fd >= 0 && flags.log_file.empty()) {
    log = Logger(mount::MakeSystemLog(), context.globals.log_level);
  }
  const std::string point = MR_TRY(mount::ResolveMountPoint(flags.directory));
  MR_TRY(mount::PrepareMountPoint(point));
  const object::Url url = MR_TRY(object::ParseUrl(flags.url));
  auto connection = MR_TRY(context.Connect());
  object::Location root = MR_TRY(OpenRoot(*connection, url));
  vfs::Options options = MR_TRY(TreeOptions(flags, url, root.key, log));
  MR_TRY(CheckRoot(url, options.prefix));
  MR_TRY(AddStaging(flags, root.store->Identity(), options));
  if (!options.read_only) MR_TRY(RequireConditions(root, options, context.stop));

  const std::uint64_t total = context.globals.memory_budget;
  const int threads = std::clamp(static_cast<int>(total / 8 / kThreadBytes), 2, flags.threads);
  const std::uint64_t overhead = kProcessBytes + kThreadBytes * static_cast<std::uint64_t>(threads);
  if (total < overhead + 4 * flags.write_part) {
    return Fail(Code::kInvalidArgument, "a mount needs a memory budget of {} at least; this one is {}",
                FormatBytes(overhead + 4 * flags.write_part), FormatBytes(total));
  }
  MemoryBudget budget(total - overhead);
  auto cache = MR_TRY(cache::BlockCache::Open(
      *root.store, budget,
      {.block_bytes = std::min<std::uint64_t>(kMiB, flags.read_part),
       .max_fetch_bytes = flags.read_part,
       .memory_bytes = flags.read_only ? budget.total() / 8 * 7 : budget.total() / 2,
       .keep_read_bytes = budget.total() / 16,  // the kernel keeps pages too
       .directory = flags.cache_directory.empty() ? "" : std::filesystem::absolute(flags.cache_directory),
       .disk_bytes = flags.cache_directory.empty() ? 0 : flags.max_cache,
       .log = log}));
  Json staging = {{"directory", options.staging_directory.string()}, {"target", options.staging_target}};
  const bool strict = !options.allow_delete || !options.allow_overwrite;
  const mount::ServiceManager manager;
  // Made here, to go after the mount: what it asks of a mount that hangs ends when the kernel drops the mount.
  std::optional<mount::Caretaker> caretaker;
  auto tree = MR_TRY(vfs::Tree::Open(*root.store, *cache, budget, std::move(options), {.stop = context.stop}));
  mount::MountStats stats(*tree, *cache, flags.url, point, std::move(staging));
  std::unique_ptr<http::Server> metrics_server;
  if (!flags.metrics_listen.empty()) {
    metrics_server = MR_TRY(
        metrics::ServeMetrics({.listen = flags.metrics_listen,
                               .access = {.key_file = flags.metrics_key_file, .insecure = flags.metrics_insecure},
                               .how = "--metrics-key-file FILE, or --metrics-insecure",
                               .log = log},
                              [&stats] { return stats.PrometheusText(); }));
  }
  auto server = MR_TRY(mount::FuseMount::Create(*tree, {.mount_point = point,
                                                        .source = flags.url,
                                                        .store = root.store->Identity(),
                                                        .read_only = flags.read_only,
                                                        .allow_other = flags.allow_other,
                                                        .xattrs = flags.stored_attributes != "never",
                                                        .strict = strict,
                                                        .kernel_read_ahead = flags.read_ahead,
                                                        .max_threads = threads,
                                                        .flush_timeout = MR_TRY(ParseDuration(flags.flush_timeout)),
                                                        .stats = &stats,
                                                        .log = log}));
  Status detached;
  auto live = [&] {
    if (auto set = mount::SetReadAhead(point, flags.read_ahead); !set) {
      log.Debug("the kernel's readahead stays as it is", {{"reason", set.error()}});
    }
    caretaker.emplace(  // before anybody is told that there is a daemon, and sends it SIGHUP
        manager, flags.log_file, [point] { return mount::QueryDaemon(point).has_value(); },
        [&connection] { return connection->ReloadCredentials(); }, log);
    if (flags.status_fd >= 0) {
      detached = mount::BecomeDaemon(UniqueFd(flags.status_fd), flags.log_file);
    } else if (!context.globals.quiet) {
      PrintError("{} is mounted on {}; Ctrl-C unmounts\n", flags.url, point);
    }
    manager.Ready(fmt::format("{} is mounted on {}", flags.url, point));
  };
  Status served = server->Serve(live, context.stop);
  manager.Stopping();
  return detached ? served : detached;
}

/// Finishes what earlier mounts left behind, without mounting.
Status Recover(const Context& context, const MountFlags& flags) {
  auto connection = MR_TRY(context.Connect());
  const object::Url url = MR_TRY(object::ParseUrl(flags.url));
  object::Location root = MR_TRY(OpenRoot(*connection, url));
  vfs::Options options = MR_TRY(TreeOptions(flags, url, root.key, context.log()));
  MR_TRY(AddStaging(flags, root.store->Identity(), options));
  auto renames = MR_TRY(vfs::RecoverAllRenames(*root.store, options, {.stop = context.stop}));
  MemoryBudget budget(context.globals.memory_budget);
  auto cache = MR_TRY(cache::BlockCache::Open(*root.store, budget, {.memory_bytes = budget.total() / 4}));
  const std::string staging = options.staging_directory;
  auto tree = MR_TRY(vfs::Tree::Open(*root.store, *cache, budget, std::move(options), {.stop = context.stop}));
  const int files = tree->recovered_files();
  Status flushed = tree->FlushAll({.stop = context.stop});
  const int left = tree->pending().files;
  if (!context.globals.quiet) {
    Print("files that were staged: {} published, {} left in {}\n", files - left, left, staging);
    Print("renames of directories that were cut off: {} finished, {} undone, {} left to whoever is at work\n",
          renames.finished, renames.rolled_back, renames.left);
  }
  MR_TRY(std::move(flushed));
  return tree->recovery();
}

/// `millrace mount --check DIR`
Status RunCheck(const Context& context, const MountFlags& flags) {
  const std::string& directory = flags.directory.empty() ? flags.url : flags.directory;
  const Duration timeout = MR_TRY(ParseDuration(flags.check_timeout));
  MR_TRY(mount::CheckMount(directory, timeout));
  if (!context.globals.quiet) Print("{} is mounted and answers\n", directory);
  auto stats = mount::QueryStats(directory);
  const Json pending = stats ? stats->value("pending", Json::object()) : Json::object();
  if (const int failing = pending.value("failing", 0); failing > 0) {
    PrintError("{} files cannot be published yet; they are staged, and tried again: {}\n", failing,
               pending.value("reason", ""));
  }
  return {};
}

int RunMount(const Context& context, const MountFlags& flags) {
  if (flags.check) {
    Status checked = RunCheck(context, flags);
    if (checked) return kExitOk;
    const int status = ReportError(context, checked.error());
    std::fflush(nullptr);
    ::_exit(status);  // the thread that asks a mount which hangs cannot be joined
  }
  if (flags.recover || flags.directory.empty()) {
    Status done = Fail(Code::kInvalidArgument, "name the directory to mount on");
    if (flags.recover && !flags.directory.empty()) {
      done = Fail(Code::kInvalidArgument, "--recover mounts nothing: leave out the directory");
    } else if (flags.recover) {
      done = Recover(context, flags);
    }
    return done ? kExitOk : ReportError(context, done.error());
  }
  if (context.globals.dry_run) {
    Print("would mount {} on {}\n", flags.url, flags.directory);
    return kExitOk;
  }
  if (!flags.foreground && flags.status_fd < 0) {
    auto status = mount::StartDaemon(context.arguments, context.stop);
    return status ? *status : ReportError(context, status.error());
  }
  Status served = ServeMount(context, flags);
  return served ? kExitOk : ReportError(context, served.error());
}

/// Blocks until the process ends; false once the time has passed or `stop` fired.
bool AwaitEnd(int pidfd, Duration timeout, const std::stop_token& stop) {
  const Deadline deadline = Deadline::After(SystemClock(), timeout);
  while (!deadline.Passed(SystemClock()) && !stop.stop_requested()) {
    pollfd ended{pidfd, POLLIN, 0};
    if (::poll(&ended, 1, 100) > 0) return true;
  }
  return false;
}

struct UmountFlags {
  std::string directory, timeout = "5m";
  bool lazy = false;
};

Status RunUmount(const Context& context, const UmountFlags& flags) {
  const Duration timeout = MR_TRY(ParseDuration(flags.timeout));
  const std::string point = MR_TRY(mount::ResolveMountPoint(flags.directory));
  auto mounted = MR_TRY(mount::FindMount(point));
  if (!mounted) return Fail(Code::kNotFound, "nothing is mounted on {}", point);
  if (!mounted->type.starts_with("fuse")) {
    return Fail(Code::kInvalidArgument, "{} is a {} mount, not one of millrace", point, mounted->type);
  }
  auto daemon = mount::QueryDaemon(point);
  if (!daemon && daemon.error().code() != Code::kUnavailable) return Fail(daemon.error());
  if (!daemon) return mount::Unmount(point, /*lazy=*/true);  // it was killed: nothing is left to wait for
  UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, daemon->pid, 0)));
  const Json staging = mount::QueryStats(point).value_or(Json::object()).value("staging", Json::object());
  if (Status detached = mount::Unmount(point, flags.lazy); !detached) {
    if (detached.error().code() != Code::kBusy) return detached;
    return Fail(
        Code::kBusy,
        "{} is in use ({} files open for writing, {} not published); `fuser -m {}` shows by whom, --lazy detaches "
        "it anyway",
        point, daemon->files_being_written, FormatBytes(daemon->bytes_being_written), point);
  }
  if (process && !AwaitEnd(process.get(), timeout, context.stop)) {
    return Fail(context.stop.stop_requested() ? Code::kCancelled : Code::kDeadlineExceeded,
                "{} is detached, but its daemon (process {}) still publishes {} files ({})", point, daemon->pid,
                daemon->files_being_written, FormatBytes(daemon->bytes_being_written));
  }
  const std::string folder = staging.value("directory", "");
  const auto left = vfs::StagingArea::LookFor(folder, staging.value("target", ""));
  if (left.files == 0) return {};
  return Fail(
      Code::kUnavailable,
      "{} is unmounted, but {} files ({}) are not in the bucket; they are in {}: the next mount publishes them, or "
      "`millrace mount {} --recover`",
      point, left.files, FormatBytes(left.bytes), folder, mounted->source);
}

CLI::Option* AddBytes(CLI::App& command, const std::string& name, std::uint64_t& into, const std::string& help) {
  return command.add_option_function<std::string>(
      name,
      [&into](const std::string& text) {
        auto parsed = ParseBytes(text);
        if (!parsed) throw CLI::ValidationError(parsed.error().ToString());
        into = *parsed;
      },
      help);
}

void AddMount(CLI::App& app, Context& context) {
  auto flags = std::make_shared<MountFlags>();
  CLI::App* mount =
      AddCommand(app, context, "mount", "Mount a bucket, a prefix of one, or a folder as a file system",
                 "  millrace mount s3://corpus /mnt/corpus --read-only\n"
                 "  millrace mount s3://runs/llama /mnt/run --cache /var/cache/millrace --max-cache-size 100GiB\n"
                 "  millrace mount s3:// /mnt/buckets\n"
                 "  millrace mount --check /mnt/corpus\n"
                 "  millrace umount /mnt/corpus",
                 [&context, flags] { return RunMount(context, *flags); });
  mount->add_option("url", flags->url, "s3://bucket[/prefix], s3:// for all buckets, file:///folder or a path")
      ->required();
  mount->add_option("directory", flags->directory, "An empty folder to mount on");
  mount->add_flag("--recover", flags->recover,
                  "Mount nothing: finish what mounts that were killed left behind, as the next mount would");
  mount->add_flag("--read-only", flags->read_only, "Refuse every change");
  mount->add_flag("--allow-other", flags->allow_other, "Let other users in, within the modes");
  mount->add_flag("--strict", flags->strict, "As Mountpoint: refuse to delete and to overwrite unless allowed");
  mount->add_flag("--allow-delete", flags->allow_delete, "With --strict: allow deleting");
  mount->add_flag("--allow-overwrite", flags->allow_overwrite, "With --strict: allow overwriting");
  mount->add_flag("--no-delete", flags->no_delete, "Refuse to delete");
  mount->add_flag("--no-overwrite", flags->no_overwrite, "Refuse to overwrite");
  mount->add_option("--uid", flags->uid, "Owner of files that store none (default: you)");
  mount->add_option("--gid", flags->gid, "Group of files that store none (default: yours)");
  mount->add_option("--file-mode", flags->file_mode, "Mode of files that store none (default 0644)");
  mount->add_option("--dir-mode", flags->directory_mode, "Mode of directories that store none (default 0755)");
  mount
      ->add_option("--stored-attributes", flags->stored_attributes,
                   "Modes, owners, times, xattrs and links in object metadata: auto; always, to ask for those of "
                   "every entry, as buckets of s3fs and rclone need; or never")
      ->check(CLI::IsMember({"auto", "always", "never"}));
  mount->add_option("--prefix", flags->prefix, "Show only the keys below this prefix");
  mount->add_flag("--foreground", flags->foreground, "Stay in the terminal");
  mount->add_option(
      "--cache", flags->cache_directory,
      "Keep blocks in this folder of your own, which is new, empty or was made by millrace; mounts may share "
      "it");
  AddBytes(*mount, "--max-cache-size", flags->max_cache, "Of that folder (default 20GiB)");
  mount->add_option(
      "--metadata-ttl", flags->metadata_ttl,
      "Trust names, attributes and versions for so long, also on open; a duration or \"forever\" (default: "
      "1s, and every open asks)");
  mount->add_option("--negative-ttl", flags->negative_ttl, "Trust absence for so long (default: as --metadata-ttl)");
  AddBytes(*mount, "--read-part-size", flags->read_part, "Most bytes of one read request (default 8MiB)");
  AddBytes(*mount, "--write-part-size", flags->write_part, "Bytes of one uploaded part (default 8MiB)");
  mount
      ->add_option(
          "--close", flags->close,
          "What close waits for: sync, that the store has the file; async, that it is staged on local disk (it "
          "outlives the daemon, and is published in the background)")
      ->check(CLI::IsMember({"sync", "async"}))
      ->capture_default_str();
  mount->add_option("--publish-delay", flags->publish_delay, "With --close=async: how long after close")
      ->capture_default_str();
  mount
      ->add_option("--flush-timeout", flags->flush_timeout,
                   "How long unmounting tries to publish; what is left then stays staged for the next mount")
      ->capture_default_str();
  mount->add_option(
      "--staging-dir", flags->staging_directory,
      "Keep written bytes here until the store has them: a folder of your own that is new, empty or was made "
      "by millrace (default: $XDG_CACHE_HOME/millrace/staging, else ~/.cache/millrace/staging)");
  AddBytes(*mount, "--staging-limit", flags->staging_limit,
           "Of that folder; beyond it, writes give ENOSPC (default: a "
           "quarter of the free disk)");
  AddBytes(*mount, "--kernel-read-ahead", flags->read_ahead,
           "How far the kernel reads ahead (default 1MiB; needs root)");
  mount
      ->add_option("--parallel-listing", flags->parallel_listing,
                   "Pieces of a long listing to read at a time, where pages are slow and it proves faster")
      ->check(CLI::Range(1, 16))
      ->capture_default_str();
  mount->add_option("--threads", flags->threads, "Requests served at a time")
      ->check(CLI::Range(2, 256))
      ->capture_default_str();
  mount->add_option("--log-file", flags->log_file, "Where the daemon logs (default: the system log)");
  mount->add_option("--metrics-listen", flags->metrics_listen, "Serve /metrics for Prometheus here: 127.0.0.1:9464");
  mount->add_option("--metrics-key-file", flags->metrics_key_file,
                    "Serve them to who sends one of these keys as a bearer token (one a line, readable for you alone)");
  mount->add_flag("--metrics-insecure", flags->metrics_insecure, "Serve them beyond loopback without keys");
  mount->add_flag("--check", flags->check, "Ask whether the mount on a directory answers; status 0 if it does");
  mount->add_option("--check-timeout", flags->check_timeout, "How long to wait for its answer")->capture_default_str();
  mount->add_option("--status-fd", flags->status_fd)->group("");  // how the daemon reports to the command
}

void AddUmount(CLI::App& app, Context& context) {
  auto flags = std::make_shared<UmountFlags>();
  CLI::App* umount = AddCommand(app, context, "umount", "Unmount, and wait until everything written is in the bucket",
                                "  millrace umount /mnt/corpus", [&context, flags] {
                                  Status done = RunUmount(context, *flags);
                                  return done ? kExitOk : ReportError(context, done.error());
                                });
  umount->add_option("directory", flags->directory, "The mount point")->required();
  umount->add_flag("--lazy", flags->lazy, "Detach even while files are open");
  umount->add_option("--timeout", flags->timeout, "How long to wait for the daemon")->capture_default_str();
}

}  // namespace

void AddMountCommands(CLI::App& app, Context& context) {
  AddMount(app, context);
  AddUmount(app, context);
}

}  // namespace millrace::cli
