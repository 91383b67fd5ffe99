#include "millrace/mount/session.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "millrace/base/json.h"
#include "millrace/base/text.h"
#include "millrace/base/threads/memory_budget.h"
#include "millrace/cache/block_cache.h"
#include "millrace/http/server/server.h"
#include "millrace/mount/daemon/session_lease.h"
#include "millrace/mount/fuse/fuse_mount.h"
#include "millrace/mount/fuse/session_header.h"
#include "millrace/mount/point/mount_point.h"
#include "millrace/mount/point/mount_stats.h"
#include "millrace/object/blocking.h"
#include "millrace/object/support/conditions.h"
#include "millrace/vfs/tree.h"

namespace millrace::mount {
namespace {

/// The memory of each thread: a request and a reply, at most 1 MiB each (kMaxRequest in fuse/request.h).
constexpr std::uint64_t kThreadBytes = 2 * kMiB;

Status CheckFolder(const std::string& url, const std::string& prefix) {
  const object::Url parsed = MR_TRY(object::ParseUrl(url));
  if (parsed.scheme != object::Url::Scheme::kFile || std::filesystem::is_directory("/" + prefix)) return {};
  return Fail(Code::kNotFound, "{} is no folder; create it, or mount another", parsed.ToString());
}

/// Refuses a store that ignores the conditions of writes. A mount of all buckets tests the first bucket that it may
/// write.
Status RequireConditions(const OpenedSource& source, std::stop_token stop) {
  // For all buckets together, since there may be many, and none that may be written. If no bucket answers the question
  // in this time, the mount goes on, and the first write reports what is wrong. 15 s: a guess.
  constexpr auto kPatience = std::chrono::seconds(15);
  const object::Call call{.stop = std::move(stop), .deadline = Deadline::After(SystemClock(), kPatience)};
  std::vector<std::string> prefixes = {source.tree.prefix};
  if (source.tree.buckets_at_top) {
    auto buckets = object::List(*source.root.store, {.delimiter = "/"}, call);
    if (!buckets) return {};
    prefixes = std::move(buckets->common_prefixes);
  }
  for (const std::string& prefix : prefixes) {
    if (!object::ProbeConditions(*source.root.store, prefix, call)) continue;
    return object::RequireConditions(*source.root.store, prefix, "mount it with --read-only", call);
  }
  return {};
}

/// How a session divides its memory.
struct MemoryPlan {
  int threads = 0;
  std::uint64_t data_bytes = 0;  ///< for cache and data in flight
};

Result<MemoryPlan> PlanMemory(const SessionOptions& options) {
  const std::uint64_t total = options.memory_bytes;
  const int threads = std::clamp(static_cast<int>(total / 8 / kThreadBytes), 2, options.max_threads);
  const std::uint64_t overhead = options.process_bytes + kThreadBytes * static_cast<std::uint64_t>(threads);
  const std::uint64_t least = overhead + 4 * options.source.write_part_bytes;
  if (total < least) {
    return Fail(Code::kInvalidArgument, "a mount needs a memory budget of {} at least; this one is {}",
                FormatBytes(least), FormatBytes(total));
  }
  return MemoryPlan{threads, total - overhead};
}

cache::BlockCache::Options CacheOptions(const SessionOptions& options, std::uint64_t data_bytes) {
  const bool on_disk = !options.cache_directory.empty();
  return {.block_bytes = std::min<std::uint64_t>(kMiB, options.source.read_part_bytes),
          .max_fetch_bytes = options.source.read_part_bytes,
          .memory_bytes = options.source.read_only ? data_bytes / 8 * 7 : data_bytes / 2,
          .keep_read_bytes = data_bytes / 16,  // small, because the kernel also caches what was read
          .directory = on_disk ? std::filesystem::absolute(options.cache_directory) : std::filesystem::path(),
          .disk_bytes = on_disk ? options.cache_disk_bytes : 0,
          .log = options.source.log};
}

/// The part of a session that outlives this process.
struct KeptState {
  /// Holds the mount's name at the keeper. If the keeper has the mount of a process that died, reads that process's
  /// log; else begins a log. If the log cannot be read, the mount is dropped: it cannot be served any more.
  Status Open(const SessionHolderOptions& keeper, const SourceOptions& source, vfs::TreeOptions& tree);
  MountToResume Resumed() { return {.device = std::move(device), .state = &state}; }
  /// Call when the mount cannot be served. If no process can go on with it, it ends.
  void GiveUp(const Error& reason) const {
    if (held && reason.code() == Code::kCorrupt) held->ForgetSession();
  }
  /// Call when the mount has ended.
  void End() {
    if (log) log->Remove();
    if (held) held->ForgetSession();
  }

  std::unique_ptr<SessionLease> held;
  std::unique_ptr<vfs::SessionLog> log;
  UniqueFd device;
  vfs::SessionState state;
};

Status KeptState::Open(const SessionHolderOptions& keeper, const SourceOptions& source, vfs::TreeOptions& tree) {
  held = MR_TRY(SessionLease::Acquire(keeper.socket, keeper.name, source.log));
  device = held->TakeDevice();
  tree.began = SystemClock().Wall();
  if (device) {
    auto resumed = vfs::SessionLog::Resume(keeper.log, source.log);
    auto header = resumed ? ParseHeader(resumed->state.header) : Fail(resumed.error());
    if (header && header->source != source.url) {
      header = Fail(Code::kInvalidArgument, "{} is the log of {}; give each mount a name and a log of its own",
                    keeper.log.string(), header->source);
    }
    if (!header) {
      held->ForgetSession();
      return Fail(header.error().Context("the mount of a process that died cannot be served on"));
    }
    log = std::move(resumed->log);
    state = std::move(resumed->state);
    tree.restored = &state;
    tree.began = header->began;
  } else {
    log = MR_TRY(vfs::SessionLog::Create(keeper.log, FormatHeader({source.url, tree.began, {}}), source.log));
  }
  tree.session = log.get();
  return {};
}

/// Serves the mount's figures where the options say; null if nowhere. `resumed`: the mount is that of a process that
/// died, so a failure is logged: what the programs of a mount were writing is worth more than its figures.
Result<std::unique_ptr<http::Server>> ServeStats(const SessionOptions& options, MountStats& stats, bool resumed) {
  if (!options.metrics) return nullptr;
  auto started = metrics::ServeMetrics(*options.metrics, {{"/metrics", [&stats] { return stats.PrometheusText(); }}});
  if (started || !resumed) return started;
  options.source.log.Error("this mount goes on without metrics", {{"reason", started.error()}});
  return nullptr;
}

FuseOptions FuseOptionsFor(const SessionOptions& options, const OpenedSource& source, const MemoryPlan& memory,
                           const KeptState& kept, MountStats& stats) {
  return {.mount_point = options.mount_point,
          .source = options.source.url,
          .store = source.root.store->Identity(),
          .read_only = options.source.read_only,
          .allow_other = options.allow_other,
          .allow_root = options.allow_root,
          .xattrs = options.source.stored_attributes != vfs::StoredAttributesPolicy::kNever,
          .strict = !options.source.allow_delete || !options.source.allow_overwrite,
          .kernel_read_ahead = options.kernel_read_ahead,
          .max_threads = memory.threads,
          .flush_timeout = options.flush_timeout,
          .session = kept.log.get(),
          .began = source.tree.began,
          .stats = &stats,
          .log = options.source.log};
}

}  // namespace

Status Serve(object::Connection& connection, const SessionOptions& options, std::function<Status()> on_live,
             std::stop_token stop) {
  const Logger& log = options.source.log;
  OpenedSource source = MR_TRY(OpenSource(connection, options.source));
  MR_TRY(CheckFolder(options.source.url, source.tree.prefix));
  MR_TRY(ChooseStaging(options.source, source));
  if (!source.tree.read_only) MR_TRY(RequireConditions(source, stop));

  const MemoryPlan memory = MR_TRY(PlanMemory(options));
  object::Store& store = *source.root.store;
  MemoryBudget budget(memory.data_bytes);
  auto cache = MR_TRY(cache::BlockCache::Open(store, budget, CacheOptions(options, memory.data_bytes)));
  Json staging = {{"directory", source.tree.staging_directory.string()}, {"target", source.tree.staging_target}};
  KeptState kept;
  if (options.keeper) {
    MR_TRY(kept.Open(*options.keeper, options.source, source.tree));
    // Only now: nobody answers for the mount of a process that died.
    if (!kept.device) MR_TRY(PrepareMountPoint(options.mount_point));
  }
  auto opened = vfs::Tree::Open(store, *cache, budget, source.tree, {.stop = stop});
  if (!opened) kept.GiveUp(opened.error());
  auto tree = MR_TRY(std::move(opened));
  MountStats stats(*tree, *cache, options.source.url, options.mount_point, std::move(staging));
  const std::unique_ptr<http::Server> metrics_server =
      MR_TRY(ServeStats(options, stats, /*resumed=*/bool(kept.device)));
  FuseOptions fuse = FuseOptionsFor(options, source, memory, kept, stats);
  if (kept.held) fuse.keep = [&kept](int device) { return kept.held->StoreDevice(device); };
  auto made = kept.device ? FuseMount::Resume(*tree, std::move(fuse), kept.Resumed())
                          : FuseMount::Create(*tree, std::move(fuse));
  if (!made) kept.GiveUp(made.error());
  auto server = MR_TRY(std::move(made));
  kept.state = {};
  Status started;
  auto live = [&] {
    if (auto set = SetReadAhead(options.mount_point, options.kernel_read_ahead); !set) {
      log.Debug("the kernel's readahead stays as it is", {{"reason", set.error()}});
    }
    if (on_live) started = on_live();
  };
  Status served = server->Serve(live, std::move(stop));
  server.reset();  // unmounts, if nobody has
  kept.End();
  return started ? served : started;
}

Result<RecoveryReport> Recover(object::Connection& connection, const SourceOptions& options, std::uint64_t memory_bytes,
                               std::stop_token stop) {
  OpenedSource source = MR_TRY(OpenSource(connection, options));
  MR_TRY(ChooseStaging(options, source));
  object::Store& store = *source.root.store;
  RecoveryReport report;
  report.staging_directory = source.tree.staging_directory;
  report.renames = MR_TRY(vfs::RecoverAllRenames(store, source.tree, {.stop = stop}));
  MemoryBudget budget(memory_bytes);
  auto cache = MR_TRY(cache::BlockCache::Open(store, budget, {.memory_bytes = budget.total() / 4}));
  auto tree = MR_TRY(vfs::Tree::Open(store, *cache, budget, source.tree, {.stop = stop}));
  const int files = tree->recovered_files();
  report.result = tree->FlushAll({.stop = stop});
  report.files_left = tree->pending().files;
  report.files_published = files - report.files_left;
  if (report.result) report.result = tree->recovery();
  return report;
}

}  // namespace millrace::mount
