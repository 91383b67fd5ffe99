// `millrace mount` and `millrace umount`.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <optional>

#include "apps/common/flag_checks.h"
#include "apps/millrace/cli/cli.h"
#include "apps/millrace/cli/view_flags.h"
#include "millrace/base/process/descriptor_limit.h"
#include "millrace/base/text.h"
#include "millrace/mount/check.h"
#include "millrace/mount/daemon/background.h"
#include "millrace/mount/daemon/caretaker.h"
#include "millrace/mount/daemon/rotating_log.h"
#include "millrace/mount/daemon/service_manager.h"
#include "millrace/mount/point/control.h"
#include "millrace/mount/point/mount_point.h"
#include "millrace/mount/session.h"
#include "millrace/mount/unmount.h"

namespace millrace::cli {
namespace {

constexpr Duration kForever = std::chrono::hours(24 * 365 * 10);  // longer than any mount lives

struct MountFlags {
  std::string url, directory, prefix, cache_directory, log_file, log_directory, metadata_ttl, negative_ttl, file_mode,
      directory_mode, stored_attributes = "auto", staging_directory, metrics_listen, metrics_key_file,
                      check_timeout = "10s", close = "sync", publish_delay = "1s", flush_timeout = "5m", keeper,
                      kept_name, session_log, quota_object;
  std::uint64_t staging_limit = 0, quota = 0, log_limit = 0;
  std::uint64_t max_cache = 20 * kGiB, read_part = 8 * kMiB, write_part = 8 * kMiB, read_ahead = 1 * kMiB;
  bool read_only = false, allow_other = false, allow_root = false, foreground = false, check = false,
       daemon_only = false, recover = false;
  bool strict = false, allow_delete = false, allow_overwrite = false, no_delete = false, no_overwrite = false;
  bool metrics_insecure = false;
  std::optional<WallTime> at;
  uid_t uid = ::geteuid();
  gid_t gid = ::getegid();
  int threads = 16, parallel_listing = 1, status_fd = -1;
};

Result<mode_t> ParseMode(const std::string& text, mode_t otherwise, mode_t most) {
  if (text.empty()) return otherwise;
  char* end = nullptr;
  unsigned long mode = std::strtoul(text.c_str(), &end, 8);
  if (*end != '\0' || (mode & ~static_cast<unsigned long>(most)) != 0)
    return Fail(Code::kInvalidArgument, "\"{}\" is no mode; give one such as 0640", text);
  return static_cast<mode_t>(mode);
}

Result<std::optional<Duration>> ParseTtl(const std::string& text) {
  if (text.empty()) return std::nullopt;
  if (text == "forever" || text == "indefinite") return kForever;
  if (text == "none" || text == "0") return Duration::zero();
  return MR_TRY(ParseDuration(text));
}

Result<mount::SourceOptions> ToSourceOptions(const MountFlags& flags, const Logger& log) {
  using Policy = vfs::StoredAttributesPolicy;
  mount::SourceOptions options{.url = flags.url,
                               .key_prefix = flags.prefix,
                               .read_only = flags.read_only,
                               .at = flags.at,
                               .allow_delete = !flags.no_delete && (!flags.strict || flags.allow_delete),
                               .allow_overwrite = !flags.no_overwrite && (!flags.strict || flags.allow_overwrite),
                               .uid = flags.uid,
                               .gid = flags.gid,
                               .stored_attributes = flags.stored_attributes == "always"  ? Policy::kAlways
                                                    : flags.stored_attributes == "never" ? Policy::kNever
                                                                                         : Policy::kAuto,
                               .read_part_bytes = flags.read_part,
                               .write_part_bytes = flags.write_part,
                               .parallel_listing = flags.parallel_listing,
                               .close_async = flags.close == "async",
                               .staging_directory = flags.staging_directory,
                               .staging_limit = flags.staging_limit,
                               .quota_bytes = flags.quota,
                               .quota_object = flags.quota_object,
                               .log = log};
  options.file_permissions = MR_TRY(ParseMode(flags.file_mode, 0644, 0777));
  options.directory_permissions = MR_TRY(ParseMode(flags.directory_mode, 0755, S_ISGID | 0777));
  options.metadata_ttl = MR_TRY(ParseTtl(flags.metadata_ttl));
  options.negative_ttl = MR_TRY(ParseTtl(flags.negative_ttl));
  options.publish_delay = MR_TRY(ParseDuration(flags.publish_delay));
  return options;
}

Result<mount::SessionOptions> ToSessionOptions(const Context& context, const MountFlags& flags, std::string point,
                                               const Logger& log) {
  mount::SessionOptions options{.source = MR_TRY(ToSourceOptions(flags, log)),
                                .mount_point = std::move(point),
                                .allow_other = flags.allow_other,
                                .allow_root = flags.allow_root,
                                .max_threads = flags.threads,
                                .kernel_read_ahead = flags.read_ahead,
                                .memory_bytes = context.globals.memory_budget,
                                .process_bytes = kProcessBytes,
                                .cache_directory = flags.cache_directory,
                                .cache_disk_bytes = flags.max_cache};
  options.flush_timeout = MR_TRY(ParseDuration(flags.flush_timeout));
  if (!flags.keeper.empty()) {
    options.keeper = {.socket = flags.keeper, .name = flags.kept_name, .log = flags.session_log};
  }
  if (!flags.metrics_listen.empty()) {
    options.metrics = {.listen = flags.metrics_listen,
                       .access = {.key_file = flags.metrics_key_file, .insecure = flags.metrics_insecure},
                       .how = "--metrics-key-file FILE, or --metrics-insecure",
                       .log = log};
  }
  return options;
}

/// "/mnt/corpus" is "mnt-corpus.log" in the folder of logs.
std::string LogFileOf(const std::string& folder, std::string_view point) {
  std::string name(
      point.substr(point.find_first_not_of('/') == point.npos ? point.size() : point.find_first_not_of('/')));
  std::ranges::replace(name, '/', '-');
  return fmt::format("{}/{}.log", folder, name);
}

/// Makes the folder of logs if it does not exist; readable for its owner and group, as Mountpoint's.
Result<std::string> MakeLogFolder(const std::string& folder) {
  if (::mkdir(folder.c_str(), 0750) != 0 && errno != EEXIST) {
    return Fail(ErrnoError(errno, fmt::format("cannot make the folder of logs {}", folder)));
  }
  return folder;
}

/// The URL of what is mounted: like mount-s3, takes a bucket's bare name, or the ARN of an access point. A file or
/// folder of that name comes first.
std::string SourceUrl(const std::string& text) {
  if (text.starts_with("arn:")) return "s3://" + text;
  std::error_code error;
  const bool path = text.contains('/') || std::filesystem::exists(text, error) || error;
  return !path && object::ParseUrl("s3://" + text) ? "s3://" + text : text;
}

Status ServeMount(const Context& context, const MountFlags& flags) {
  RaiseDescriptorLimit();
  Logger log = context.log();
  // Serve prepares the point of a kept mount: if its process died, nobody answers for it now.
  const std::string point = flags.keeper.empty() ? MR_TRY(mount::PrepareMountPoint(flags.directory)) : flags.directory;
  const std::string log_file =
      flags.log_directory.empty() ? flags.log_file : LogFileOf(MR_TRY(MakeLogFolder(flags.log_directory)), point);
  if (flags.status_fd >= 0 && log_file.empty()) log = Logger(mount::MakeSystemLog(), context.globals.log_level);
  if (flags.log_limit > 0 && log_file.empty()) {
    return Fail(Code::kInvalidArgument, "--log-limit is of a log file: name one with --log-file");
  }
  if (flags.log_limit > 0) {
    log = Logger(mount::MakeRotatingLog(log_file, flags.log_limit), context.globals.log_level);
  }
  const mount::SessionOptions options = MR_TRY(ToSessionOptions(context, flags, point, log));
  auto connection = MR_TRY(context.Connect());
  const mount::ServiceManager manager;
  // Outlives the mount: if the mount hangs, the caretaker's query ends only when the kernel removes the mount.
  std::optional<mount::Caretaker> caretaker;
  auto on_live = [&]() -> Status {
    caretaker.emplace(  // before the daemon reports that it is live, since SIGHUP may come from then on
        manager, log_file, [point] { return mount::QueryDaemon(point).has_value(); },
        [&connection] { return connection->ReloadCredentials(); }, log);
    Status detached;
    if (flags.status_fd >= 0) {
      detached = mount::BecomeDaemon(UniqueFd(flags.status_fd), log_file);
    } else if (!context.globals.quiet) {
      PrintError("{} is mounted on {}; Ctrl-C unmounts\n", flags.url, point);
    }
    manager.Ready(fmt::format("{} is mounted on {}", flags.url, point));
    return detached;
  };
  Status served = mount::Serve(*connection, options, on_live, context.stop);
  manager.Stopping();
  return served;
}

/// `millrace mount URL --recover`
Status RunRecover(const Context& context, const MountFlags& flags) {
  MR_TRY(RefuseDryRun(context, "mount --recover"));
  auto connection = MR_TRY(context.Connect());
  auto report = MR_TRY(mount::Recover(*connection, MR_TRY(ToSourceOptions(flags, context.log())),
                                      context.globals.memory_budget, context.stop));
  if (context.globals.json) {
    PrintJsonLine({{"event", "recovered"},
                   {"files_published", report.files_published},
                   {"files_left", report.files_left},
                   {"staging_directory", report.staging_directory.string()},
                   {"renames_finished", report.renames.finished},
                   {"renames_undone", report.renames.rolled_back},
                   {"renames_left", report.renames.left}});
  } else if (!context.globals.quiet) {
    Print("files that were staged: {} published, {} left in {}\n", report.files_published, report.files_left,
          report.staging_directory.string());
    Print("renames of directories that were cut off: {} finished, {} undone, {} left to whoever is at work\n",
          report.renames.finished, report.renames.rolled_back, report.renames.left);
  }
  return report.result;
}

/// `millrace mount --check DIR`
Status RunCheck(const Context& context, const MountFlags& flags) {
  const std::string& directory = flags.directory.empty() ? flags.url : flags.directory;
  const Duration timeout = MR_TRY(ParseDuration(flags.check_timeout));
  const auto parts = flags.daemon_only ? mount::CheckedParts::kDaemon : mount::CheckedParts::kDaemonAndStore;
  MR_TRY(mount::CheckMount(directory, timeout, parts));
  auto stats = mount::QueryStats(directory);
  const Json pending = stats ? stats->value("pending", Json::object()) : Json::object();
  if (context.globals.json) {
    PrintJsonLine({{"event", "mounted"}, {"directory", directory}, {"failing", pending.value("failing", 0)}});
  } else if (!context.globals.quiet) {
    Print("{} is mounted and answers\n", directory);
  }
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
    ::_exit(status);  // the thread that queries a hanging mount cannot be joined
  }
  if (flags.recover || flags.directory.empty()) {
    Status done = Fail(Code::kInvalidArgument, "name the directory to mount on");
    if (flags.recover && !flags.directory.empty()) {
      done = Fail(Code::kInvalidArgument, "--recover mounts nothing: leave out the directory");
    } else if (flags.recover) {
      done = RunRecover(context, flags);
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

struct UmountFlags {
  std::string directory, timeout = "5m";
  bool lazy = false, everywhere = false;
};

std::string Describe(const mount::MountView& view) {
  if (view.process == 0) return view.point;
  return fmt::format("the mount namespace of process {} ({})", view.process, view.program);
}

Status RunUmount(const Context& context, const UmountFlags& flags) {
  MR_TRY(RefuseDryRun(context, "umount"));
  const Duration timeout = MR_TRY(ParseDuration(flags.timeout));
  const mount::UnmountOptions options{.lazy = flags.lazy, .everywhere = flags.everywhere, .timeout = timeout};
  const mount::UnmountReport report = MR_TRY(mount::Unmount(flags.directory, options, context.stop));
  using Outcome = mount::UnmountOutcome;
  switch (report.outcome) {
    case Outcome::kUnmounted:
      return {};
    case Outcome::kInUse:
      return Fail(
          Code::kBusy,
          "{} is in use ({} files open for writing, {} not published); `fuser -m {}` shows by whom, --lazy detaches "
          "it anyway",
          report.mount_point, report.files, FormatBytes(report.bytes), report.mount_point);
    case Outcome::kShownElsewhere:
      return Fail(Code::kBusy,
                  "{} is detached, but {} shows it, so its daemon (process {}) serves it on; `kill {}` publishes "
                  "everything and ends it, as --everywhere would have",
                  report.mount_point, Describe(report.elsewhere.front()), report.daemon, report.daemon);
    case Outcome::kStillPublishing:
      return Fail(context.stop.stop_requested() ? Code::kCancelled : Code::kDeadlineExceeded,
                  "{} is detached, but its daemon (process {}) still publishes {} files ({})", report.mount_point,
                  report.daemon, report.files, FormatBytes(report.bytes));
    case Outcome::kFilesLeft:
      break;
  }
  return Fail(
      Code::kUnavailable,
      "{} is unmounted, but {} files ({}) are not in the bucket; they are in {}: the next mount publishes them, or "
      "`millrace mount {} --recover`",
      report.mount_point, report.files, FormatBytes(report.bytes), report.staging_directory.string(), report.source);
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

/// How S3 keeps what the mount writes, and whose bucket it must be.
void AddObjectFlags(CLI::App& mount, object::ConnectOptions& connect) {
  mount.add_option("--storage-class", connect.new_objects.storage_class,
                   "Storage class of files that are written: STANDARD_IA, INTELLIGENT_TIERING, …");
  CLI::Option* sse =
      mount.add_option("--sse", connect.new_objects.encryption,
                       "Server-side encryption of files that are written: AES256, aws:kms, aws:kms:dsse");
  sse->check(OneOf({"AES256", "aws:kms", "aws:kms:dsse"}));
  mount.add_option("--sse-kms-key-id", connect.new_objects.kms_key, "With --sse=aws:kms: ARN of the KMS key")
      ->needs(sse);
  mount.add_option("--expected-bucket-owner", connect.expected_bucket_owner,
                   "Account of the bucket, 12 digits; S3 refuses requests if another account owns it");
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
                 [&context, flags] {
                   if (!flags->check) flags->url = SourceUrl(flags->url);
                   return RunMount(context, *flags);
                 });
  mount
      ->add_option("url", flags->url,
                   "s3://bucket[/prefix], a bucket's name, s3:// for all buckets, file:///folder or a path")
      ->required();
  mount->add_option("directory", flags->directory, "An empty folder to mount on");
  mount->add_flag("--recover", flags->recover,
                  "Mount nothing: finish what mounts that were killed left behind, as the next mount would");
  mount->add_flag("--read-only", flags->read_only, "Refuse every change");
  AddMomentFlag(*mount, flags->at,
                "With --read-only: a bucket that keeps versions, as it was at this time (UTC, 2026-11-20T12:00) or so "
                "long ago (2h)");
  CLI::Option* other =
      mount->add_flag("--allow-other", flags->allow_other, "Let other users use the mount, within the files' modes");
  mount->add_flag("--allow-root", flags->allow_root, "Let root use the mount, and nobody else")->excludes(other);
  mount->add_flag("--strict", flags->strict, "Like Mountpoint: refuse to delete and to overwrite unless allowed");
  mount->add_flag("--allow-delete", flags->allow_delete, "With --strict: allow deleting");
  mount->add_flag("--allow-overwrite", flags->allow_overwrite, "With --strict: allow overwriting");
  mount->add_flag("--no-delete", flags->no_delete, "Refuse to delete");
  mount->add_flag("--no-overwrite", flags->no_overwrite, "Refuse to overwrite");
  mount->add_option("--uid", flags->uid, "Owner of files that store none (default: you)");
  mount->add_option("--gid", flags->gid, "Group of files that store none (default: yours)");
  mount->add_option("--file-mode", flags->file_mode, "Mode of files that store none (default: 0644)");
  mount->add_option("--dir-mode", flags->directory_mode,
                    "Mode of directories that store none; with 02000, as in 02770, what is made in them has their "
                    "group (default: 0755)");
  mount
      ->add_option("--stored-attributes", flags->stored_attributes,
                   "Modes, owners, times, xattrs and links in object metadata: auto; always, to ask for those of "
                   "every entry, as buckets of s3fs and rclone need; or never")
      ->check(OneOf({"auto", "always", "never"}));
  mount->add_option("--prefix", flags->prefix, "Show only the keys below this prefix");
  AddObjectFlags(*mount, context.globals.connect);
  AddBytes(
      *mount, "--quota", flags->quota,
      "The most bytes below the prefix: df shows it, and writes beyond it give ENOSPC. Mounts of several hosts may "
      "pass it by what they write in a few seconds (default: none)");
  mount->add_option("--quota-object", flags->quota_object,
                    "Key of a JSON object whose member capacity_bytes is the quota, so that it can change");
  mount->add_flag("--foreground", flags->foreground, "Stay in the terminal");
  mount->add_option(
      "--cache", flags->cache_directory,
      "Keep blocks in this folder of your own, which is new, empty or was made by millrace; mounts may share "
      "it");
  AddBytes(*mount, "--max-cache-size", flags->max_cache, "Most bytes in the --cache folder (default: 20GiB)");
  mount->add_option(
      "--metadata-ttl", flags->metadata_ttl,
      "Trust names, attributes and versions for this long, also on open; a duration or \"forever\" (default: "
      "1s, and every open asks)");
  mount->add_option("--negative-ttl", flags->negative_ttl,
                    "Trust for this long that a name does not exist (default: as --metadata-ttl)");
  AddBytes(*mount, "--read-part-size", flags->read_part, "Most bytes of one read request (default: 8MiB)");
  AddBytes(*mount, "--write-part-size", flags->write_part, "Bytes of one uploaded part (default: 8MiB)");
  mount
      ->add_option(
          "--close", flags->close,
          "What close waits for: sync, that the store has the file; async, that it is staged on local disk (it "
          "outlives the daemon, and is published in the background)")
      ->check(OneOf({"sync", "async"}))
      ->capture_default_str();
  mount
      ->add_option("--publish-delay", flags->publish_delay,
                   "With --close=async: how long after close a file is published")
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
           "How far the kernel reads ahead (default: 1MiB; needs root)");
  mount
      ->add_option("--parallel-listing", flags->parallel_listing,
                   "Parts of a long listing to read at a time, if its pages are slow and this is faster")
      ->check(Between(1, 16))
      ->capture_default_str();
  mount->add_option("--threads", flags->threads, "Most requests served at a time")
      ->check(Between(2, 256))
      ->capture_default_str();
  CLI::Option* log_file =
      mount->add_option("--log-file", flags->log_file, "Where the daemon logs (default: the system log)");
  mount->add_option("--log-directory", flags->log_directory, "The same, as a file in this folder: mnt-corpus.log")
      ->excludes(log_file);
  AddBytes(*mount, "--log-limit", flags->log_limit,
           "Rename the log file to FILE.1 when it has this size, and begin another (default: no limit)");
  mount->add_option("--metrics-listen", flags->metrics_listen, "Serve /metrics for Prometheus here: 127.0.0.1:9464");
  mount->add_option("--metrics-key-file", flags->metrics_key_file,
                    "File of keys; serve /metrics to clients that send one as a bearer token (one key a line; only you "
                    "may be able to read it)");
  mount->add_flag("--metrics-insecure", flags->metrics_insecure, "Serve /metrics beyond loopback without keys");
  CLI::Option* check =
      mount->add_flag("--check", flags->check, "Ask whether the mount on a directory answers; status 0 if it does");
  mount->add_flag("--daemon-only", flags->daemon_only, "With --check: do not ask for the store behind the mount")
      ->needs(check);
  mount->add_option("--check-timeout", flags->check_timeout, "How long to wait for its answer")->capture_default_str();
  mount->add_option("--status-fd", flags->status_fd)->group("");  // how the daemon reports to the command
  // For the mounter of the CSI driver, which starts a daemon again when one died: see millrace/mount/daemon.
  CLI::Option* keeper = mount->add_option("--keeper", flags->keeper)->group("");
  CLI::Option* kept_name = mount->add_option("--kept-name", flags->kept_name)->group("")->needs(keeper);
  keeper->needs(kept_name)->needs(mount->add_option("--session-log", flags->session_log)->group("")->needs(keeper));
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
  umount->add_flag("--everywhere", flags->everywhere,
                   "End it also where containers or bind mounts show it: programs there get errors");
  umount->add_option("--timeout", flags->timeout, "How long to wait for the daemon")->capture_default_str();
}

}  // namespace

void AddMountCommands(CLI::App& app, Context& context) {
  AddMount(app, context);
  AddUmount(app, context);
}

}  // namespace millrace::cli
