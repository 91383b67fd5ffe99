#include "millrace/checkpoint/convert/torch/random_bytes.h"

#include <algorithm>

#include "millrace/object/blocking.h"
#include "millrace/transfer/stream/window.h"

namespace millrace::checkpoint {
namespace {

/// The bytes that a small read fetches. A guess: it covers the end records and the directory of a small archive.
constexpr std::uint64_t kSmallWindow = 4 * kKiB;
/// The largest gap between merged ranges. A guess: reading 32 KiB more takes less time than another request.
constexpr std::uint64_t kSmallGap = 32 * kKiB;
/// The largest merged request: the size of one part in ranged reads elsewhere.
constexpr std::uint64_t kMaxMerged = 8 * kMiB;
/// Requests in flight. A guess: small requests wait for the store's latency, not for bandwidth.
constexpr int kPrefetchParallel = 32;

Status CheckRead(const Result<std::optional<object::GetResult>>& got, std::uint64_t size, std::string_view name) {
  if (!got && got.error().code() != Code::kPreconditionFailed) return Fail(got.error());
  if (!got || !*got || (*got)->bytes != size) return Fail(Code::kStale, "{} changed while it was read", name);
  return {};
}

}  // namespace

Result<Prefetched> Prefetched::Get(object::ReadStore& store, std::vector<ObjectRange> ranges,
                                   const object::Call& call) {
  std::ranges::sort(
      ranges, {}, [](const ObjectRange& range) { return std::pair(std::string_view(range.object->key), range.begin); });
  Prefetched prefetched;
  transfer::Window window(kPrefetchParallel, call);
  for (std::size_t first = 0, last = 0; first < ranges.size(); first = last) {
    const object::ObjectInfo& object = *ranges[first].object;
    const std::uint64_t begin = ranges[first].begin;
    std::uint64_t end = begin;
    for (; last < ranges.size() && ranges[last].object->key == object.key; ++last) {
      const ObjectRange& range = ranges[last];
      if (last > first && (range.begin > end + kSmallGap || range.begin + range.size > begin + kMaxMerged)) break;
      end = std::max(end, range.begin + range.size);
    }
    Buffer& buffer = prefetched.got_[{object.key, begin}];
    buffer = Buffer(end - begin);
    if (!window.Enter()) break;
    store.Get(object.key, {.range = object::ByteRange{begin, end - begin}, .if_match = object.etag}, buffer.span(),
              window.call(),
              [&window, &object, size = end - begin](auto got) { window.Leave(CheckRead(got, size, object.key)); });
  }
  MR_TRY(window.Finish());
  return prefetched;
}

bool Prefetched::Copy(std::string_view key, std::uint64_t offset, MutableByteSpan into) const {
  auto after = got_.upper_bound({key, offset});
  if (after == got_.begin()) return false;
  const auto& [start, buffer] = *std::prev(after);
  if (start.first != key || offset + into.size() > start.second + buffer.size()) return false;
  std::memcpy(into.data(), buffer.data() + (offset - start.second), into.size());
  return true;
}

ObjectBytes::ObjectBytes(object::ReadStore& store, object::ObjectInfo info, std::uint64_t begin, std::uint64_t size,
                         object::Call call, std::shared_ptr<const Prefetched> prefetched)
    : store_(store),
      info_(std::move(info)),
      begin_(begin),
      size_(size),
      call_(std::move(call)),
      name_(begin == 0 && size == info_.size
                ? fmt::format("{}/{}", store.Describe(), info_.key)
                : fmt::format("{}/{} (bytes {} to {})", store.Describe(), info_.key, begin, begin + size)),
      prefetched_(std::move(prefetched)) {}

Status ObjectBytes::ReadAt(std::uint64_t offset, MutableByteSpan into) {
  if (into.empty()) return {};
  if (prefetched_ && prefetched_->Copy(info_.key, begin_ + offset, into)) return {};
  if (into.size() > kSmallWindow) return Fetch(offset, into);
  for (const Window& window : windows_) {
    if (offset < window.begin || offset + into.size() > window.begin + window.bytes.size()) continue;
    std::memcpy(into.data(), window.bytes.data() + (offset - window.begin), into.size());
    return {};
  }
  Window& window = windows_[oldest_];
  oldest_ = 1 - oldest_;
  Buffer bytes(std::min(kSmallWindow, size_ - offset));
  MR_TRY(Fetch(offset, bytes.span()));
  window = {offset, std::move(bytes)};
  std::memcpy(into.data(), window.bytes.data(), into.size());
  return {};
}

Status ObjectBytes::Fetch(std::uint64_t offset, MutableByteSpan into) {
  const object::GetOptions options{.range = object::ByteRange{begin_ + offset, into.size()}, .if_match = info_.etag};
  return CheckRead(object::Get(store_, info_.key, options, into, call_), into.size(), name_);
}

Status ObjectBytes::WillRead(const std::vector<object::ByteRange>& ranges) {
  std::vector<Prefetched::ObjectRange> of_object;
  for (const object::ByteRange& range : ranges) {
    if (range.offset >= size_) continue;
    of_object.push_back({&info_, begin_ + range.offset, std::min(range.length, size_ - range.offset)});
  }
  prefetched_ = std::make_shared<const Prefetched>(MR_TRY(Prefetched::Get(store_, std::move(of_object), call_)));
  return {};
}

}  // namespace millrace::checkpoint
