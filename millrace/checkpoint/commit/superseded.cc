#include "millrace/checkpoint/commit/superseded.h"

#include <algorithm>
#include <array>
#include <atomic>

#include "millrace/base/threads/sync.h"
#include "millrace/base/threads/task_scope.h"
#include "millrace/object/blocking.h"

namespace millrace::checkpoint {
namespace {

/// Requests in flight. A guess: manifests are read one after the other where there are few.
constexpr std::size_t kParallel = 8;

}  // namespace

Result<std::optional<OwnerRecord>> ReadOwner(object::ReadStore& store, const CheckpointKeys& keys,
                                             const object::Call& call) {
  const auto content = MR_TRY(object::GetAll(store, keys.OwnerKey(), OwnerRecord::kMaxBytes, call));
  if (!content) return std::nullopt;
  return MR_TRY(OwnerRecord::Parse(content->bytes, fmt::format("{}/{}", store.Describe(), keys.OwnerKey())));
}

Result<std::uint64_t> ReadEpoch(object::ReadStore& store, const std::string& manifest_key, const object::Call& call) {
  std::array<std::byte, kManifestHeadBytes> head{};
  const auto got =
      MR_TRY(object::Get(store, manifest_key, {.range = object::ByteRange{0, kManifestHeadBytes}}, head, call));
  return got ? EpochOfManifestHead(AsText(ByteSpan(head).first(got->bytes))) : 0;
}

Result<std::set<std::uint64_t>> FindSuperseded(object::ReadStore& store, const CheckpointKeys& keys,
                                               const std::vector<std::uint64_t>& steps, const object::Call& call) {
  std::set<std::uint64_t> found;
  const auto record = MR_TRY(ReadOwner(store, keys, call));
  const auto least = record ? record->LeastSuperseded() : std::nullopt;
  if (!least) return found;
  std::vector<std::uint64_t> doubtful;
  std::ranges::copy_if(steps, std::back_inserter(doubtful), [&](std::uint64_t step) { return step >= *least; });
  std::atomic<std::size_t> next = 0;
  Mutex mutex;
  std::optional<Error> first;
  const auto work = [&] {
    for (std::size_t i = next++; i < doubtful.size(); i = next++) {
      const auto epoch = ReadEpoch(store, keys.ManifestKey(doubtful[i]), call);
      MutexLock lock(mutex);
      if (!epoch && !first) first = epoch.error();
      if (first) return;
      if (record->Supersedes(*epoch, doubtful[i])) found.insert(doubtful[i]);
    }
  };
  TaskScope workers;
  for (std::size_t i = 1; i < std::min(kParallel, doubtful.size() / 4); ++i)
    workers.Spawn("ckpt-epochs", [&](std::stop_token) { work(); });
  work();
  workers.Join();
  if (first) return Fail(*first);
  return found;
}

}  // namespace millrace::checkpoint
