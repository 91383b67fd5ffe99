#include "millrace/collectives/tcp/secret_bytes.h"

#include <string.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace millrace::collectives {

struct SecretBytes::Page {
  explicit Page(ByteSpan bytes) : size(bytes.size()) {
    void* const mapped = ::mmap(nullptr, kMax, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED || size > kMax) std::abort();
    data = static_cast<std::byte*>(mapped);
    ::madvise(mapped, kMax, MADV_DONTDUMP);
    std::ranges::copy(bytes, data);
  }
  ~Page() {
    ::explicit_bzero(data, kMax);
    ::munmap(data, kMax);
  }
  Page(const Page&) = delete;
  Page& operator=(const Page&) = delete;

  const std::size_t size;
  std::byte* data = nullptr;
};

SecretBytes::SecretBytes(ByteSpan bytes) : page_(std::make_shared<const Page>(bytes)) {}

ByteSpan SecretBytes::span() const { return page_ ? ByteSpan(page_->data, page_->size) : ByteSpan(); }

}  // namespace millrace::collectives
