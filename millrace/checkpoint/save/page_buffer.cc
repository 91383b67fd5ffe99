#include "millrace/checkpoint/save/page_buffer.h"

#include <sys/mman.h>

namespace millrace::checkpoint {
namespace {

constexpr std::size_t kPage = 4 * kKiB, kHugePage = 2 * kMiB;

}  // namespace

Status PageBuffer::Grow(std::uint64_t size) {
  if (size <= size_) return {};
  Free();
  std::size_t rounded = (size + kHugePage - 1) / kHugePage * kHugePage;
  void* mapped = mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    return Fail(Code::kResourceExhausted, "the system has no {} bytes for the snapshot of a checkpoint", rounded);
  }
  madvise(mapped, rounded, MADV_HUGEPAGE);
  data_ = static_cast<std::byte*>(mapped);
  size_ = rounded;
  return {};
}

void PageBuffer::Free() {
  if (data_ != nullptr) munmap(data_, size_);
  data_ = nullptr;
  size_ = 0;
}

void PageBuffer::Touch() {
  for (std::size_t at = 0; at < size_; at += kPage) static_cast<volatile std::byte*>(data_)[at] = std::byte{0};
}

}  // namespace millrace::checkpoint
