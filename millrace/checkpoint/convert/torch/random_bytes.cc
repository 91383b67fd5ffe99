#include "millrace/checkpoint/convert/torch/random_bytes.h"

#include <algorithm>

#include "millrace/object/blocking.h"
#include "millrace/transfer/stream/window.h"

namespace millrace::checkpoint {
namespace {

constexpr std::uint64_t kSmallWindow = 4 * kKiB;
/// Reading over so many bytes takes a store less time than a request of its own.
constexpr std::uint64_t kSmallGap = 32 * kKiB;
constexpr std::uint64_t kMostMerged = 8 * kMiB;
constexpr int kPrefetchParallel = 32;

Status CheckRead(const Result<std::optional<object::GetResult>>& got, std::uint64_t size, std::string_view name) {
  if (!got && got.error().code() != Code::kPreconditionFailed) return Fail(got.error());
  if (!got || !*got || (*got)->bytes != size) return Fail(Code::kStale, "{} changed while it was read", name);
  return {};
}

}  // namespace

Result<Prefetched> Prefetched::Get(object::Store& store, std::vector<Part> parts, const object::Call& call) {
  std::ranges::sort(parts, {},
                    [](const Part& part) { return std::pair(std::string_view(part.object->key), part.begin); });
  Prefetched prefetched;
  transfer::Window window(kPrefetchParallel, call);
  for (std::size_t first = 0, last = 0; first < parts.size(); first = last) {
    const object::ObjectInfo& object = *parts[first].object;
    const std::uint64_t begin = parts[first].begin;
    std::uint64_t end = begin;
    for (; last < parts.size() && parts[last].object->key == object.key; ++last) {
      const Part& part = parts[last];
      if (last > first && (part.begin > end + kSmallGap || part.begin + part.size > begin + kMostMerged)) break;
      end = std::max(end, part.begin + part.size);
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
  const auto& [place, buffer] = *std::prev(after);
  if (place.first != key || offset + into.size() > place.second + buffer.size()) return false;
  std::memcpy(into.data(), buffer.data() + (offset - place.second), into.size());
  return true;
}

ObjectBytes::ObjectBytes(object::Store& store, object::ObjectInfo info, std::uint64_t begin, std::uint64_t size,
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
  std::vector<Prefetched::Part> parts;
  for (const object::ByteRange& range : ranges) {
    if (range.offset >= size_) continue;
    parts.push_back({&info_, begin_ + range.offset, std::min(range.length, size_ - range.offset)});
  }
  prefetched_ = std::make_shared<const Prefetched>(MR_TRY(Prefetched::Get(store_, std::move(parts), call_)));
  return {};
}

}  // namespace millrace::checkpoint
