// A file's bytes as memory.
#pragma once

#include <cstddef>
#include <string_view>
#include <utility>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"

namespace millrace {

/// Maps a file for reading. The kernel reads pages when they are used, and may drop them: they are no memory of the
/// process's own. Bytes behind the end of a file that became shorter must not be touched (SIGBUS).
class MappedFile {
 public:
  /// Maps the whole file. `fd` may be closed afterwards. `what` names the file in messages.
  static Result<MappedFile> Open(int fd, std::string_view what);
  MappedFile(MappedFile&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  MappedFile& operator=(MappedFile&&) = delete;
  ~MappedFile();
  ByteSpan bytes() const { return {static_cast<const std::byte*>(data_), size_}; }

 private:
  MappedFile(void* data, std::size_t size) : data_(data), size_(size) {}
  void* data_;  ///< null if the file is empty
  std::size_t size_;
};

}  // namespace millrace
