#include "millrace/mount/recovery.h"

#include "millrace/base/threads/memory_budget.h"
#include "millrace/cache/block_cache.h"
#include "millrace/vfs/tree.h"

namespace millrace::mount {

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
