#include "millrace/vfs/write/base_reader.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "millrace/object/blocking.h"
#include "millrace/vfs/write/writer.h"

namespace millrace::vfs {
namespace {

/// Bytes fetched at a time: enough to make the requests few, and little memory. 1 MiB: a guess.
constexpr std::uint64_t kDetachBytes = 1 * kMiB;

}  // namespace

Status BaseReader::Assemble(Interval range, MutableByteSpan into, std::optional<int> part, const object::Call& call) {
  IntervalSet fetched;
  while (true) {
    std::vector<Interval> missing;
    cache::ObjectVersion base;
    {
      MutexLock lock(writer_.mutex_);
      for (const Interval& gap : writer_.content_.InBase(range)) {
        for (const Interval& unknown : fetched.Gaps(gap.begin, gap.end)) missing.push_back(unknown);
      }
      if (missing.empty()) {
        MR_TRY(writer_.content_.Read(range.begin, into));
        if (part) writer_.upload_.part(*part).state = UploadPart::State::kSending;
        return {};
      }
      base = *writer_.content_.base();
    }
    for (const Interval& gap : missing) {
      const MutableByteSpan bytes = into.subspan(gap.begin - range.begin, gap.size());
      const std::size_t read =
          MR_TRY(writer_.environment_.cache.Read(base, gap.begin, bytes, cache::BlockCache::Mode::kExact, call));
      if (read != gap.size()) return Fail(Code::kStale, "{} became shorter", base.key);
      fetched.Add(gap.begin, gap.end);
    }
  }
}

Status BaseReader::Detach(const object::Call& call) {
  Buffer buffer(kDetachBytes);
  for (std::uint64_t at = 0;;) {
    Interval range;
    cache::ObjectVersion base;
    {
      MutexLock lock(writer_.mutex_);
      MR_TRY(writer_.AwaitTurn(call));
      MR_TRY(writer_.content_.EnsureStaged());
      auto missing = writer_.content_.FirstInBase(at);
      if (!missing) return {};
      range = {missing->begin, std::min(missing->end, missing->begin + kDetachBytes)};
      base = *writer_.content_.base();
    }
    const MutableByteSpan bytes = buffer.span().first(range.size());
    const std::size_t read =
        MR_TRY(writer_.environment_.cache.Read(base, range.begin, bytes, cache::BlockCache::Mode::kExact, call));
    if (read != range.size()) return Fail(Code::kStale, "{} became shorter", base.key);
    at = range.end;
    MutexLock lock(writer_.mutex_);
    MR_TRY(writer_.content_.StageBase(range.begin, bytes));
    writer_.LogContent();
  }
}

Result<object::PutOptions> BaseReader::NextOptions(const object::Call& call) {
  cache::ObjectVersion base;
  {
    MutexLock lock(writer_.mutex_);
    if (writer_.next_.metadata) return writer_.next_.TakeOptions();
    base = *writer_.content_.base();
  }
  auto info = MR_TRY(object::Head(writer_.environment_.store, base.key, call));
  if (!info || info->etag != base.etag) return Fail(Code::kStale, "{} was replaced or removed", base.key);
  MutexLock lock(writer_.mutex_);
  writer_.next_.SetMetadataOfBase(*std::move(info));
  return writer_.next_.TakeOptions();
}

}  // namespace millrace::vfs
