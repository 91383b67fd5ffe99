#include "millrace/vfs/core/file_reader.h"

#include <algorithm>

namespace millrace::vfs {

FileReader::FileReader(TreeCore& core) : core_(core), window_({.part = core.options.read_part_bytes}) {}

FileReader::~FileReader() { Count(false); }

Result<cache::View> FileReader::Read(const cache::ObjectVersion& version, std::uint64_t offset, MutableByteSpan room,
                                     const object::Call& call) {
  if (offset >= version.size || room.empty()) return cache::View{};
  ReadaheadWindow::Plan plan;
  {
    MutexLock lock(mutex_);
    plan = window_.OnRead(offset, std::min<std::uint64_t>(room.size(), version.size - offset), Bound());
    Count(window_.sequential());
    if (plan.prefetch_length > 0) {
      const std::uint64_t wanted =
          std::min(plan.prefetch_length, version.size - std::min(version.size, plan.prefetch_from));
      const std::uint64_t accepted = core_.cache.Prefetch(version, plan.prefetch_from, wanted).bytes;
      window_.OnPrefetched(plan, accepted == wanted ? plan.prefetch_length : accepted);
    }
  }
  using Mode = cache::BlockCache::Mode;
  return core_.cache.ReadView(version, offset, room, plan.exact ? Mode::kExact : Mode::kBlocks, call);
}

/// Returns the largest window. All sequential readers share half of the cache's memory.
std::uint64_t FileReader::Bound() const {
  const auto readers = static_cast<std::uint64_t>(std::max(1, core_.sequential_readers.load()));
  return std::min(core_.options.max_readahead, core_.cache.capacity() / 2 / readers);
}

void FileReader::Count(bool sequential) {
  if (sequential != counted_) core_.sequential_readers += sequential ? 1 : -1;
  counted_ = sequential;
}

}  // namespace millrace::vfs
