// Secrets in memory.
#pragma once

#include <cstddef>
#include <memory>

#include "millrace/base/bytes.h"

namespace millrace::collectives {

/// Bytes that stay out of core files and are wiped when the last copy ends. Copies share them. Thread-safe to read.
class SecretBytes {
 public:
  static constexpr std::size_t kMax = 256;

  SecretBytes() = default;  ///< none
  /// REQUIRES: at most kMax bytes. Aborts if the system has no page left.
  explicit SecretBytes(ByteSpan bytes);

  bool empty() const { return page_ == nullptr; }
  ByteSpan span() const;

 private:
  struct Page;
  std::shared_ptr<const Page> page_;
};

}  // namespace millrace::collectives
