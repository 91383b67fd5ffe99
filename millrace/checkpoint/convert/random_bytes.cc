#include "millrace/checkpoint/convert/random_bytes.h"

#include <algorithm>

#include "millrace/object/blocking.h"

namespace millrace::checkpoint {
namespace {

constexpr std::uint64_t kWindow = 4 * kKiB;

}  // namespace

ObjectBytes::ObjectBytes(object::Store& store, object::ObjectInfo info, std::uint64_t begin, std::uint64_t size,
                         object::Call call)
    : store_(store),
      info_(std::move(info)),
      begin_(begin),
      size_(size),
      call_(std::move(call)),
      name_(begin == 0 && size == info_.size
                ? fmt::format("{}/{}", store.Describe(), info_.key)
                : fmt::format("{}/{} (bytes {} to {})", store.Describe(), info_.key, begin, begin + size)) {}

Status ObjectBytes::ReadAt(std::uint64_t offset, MutableByteSpan into) {
  if (into.empty()) return {};
  if (into.size() > kWindow) return Fetch(offset, into);
  for (const Window& window : windows_) {
    if (offset < window.begin || offset + into.size() > window.begin + window.bytes.size()) continue;
    std::memcpy(into.data(), window.bytes.data() + (offset - window.begin), into.size());
    return {};
  }
  Window& window = windows_[oldest_];
  oldest_ = 1 - oldest_;
  Buffer bytes(std::min(kWindow, size_ - offset));
  MR_TRY(Fetch(offset, bytes.span()));
  window = {offset, std::move(bytes)};
  std::memcpy(into.data(), window.bytes.data(), into.size());
  return {};
}

Status ObjectBytes::Fetch(std::uint64_t offset, MutableByteSpan into) {
  const object::GetOptions options{.range = object::ByteRange{begin_ + offset, into.size()}, .if_match = info_.etag};
  auto got = MR_TRY(object::Get(store_, info_.key, options, into, call_));
  if (!got || got->bytes != into.size()) return Fail(Code::kStale, "{} changed while it was read", name_);
  return {};
}

}  // namespace millrace::checkpoint
