#include "millrace/base/files/mapped_file.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>

namespace millrace {

Result<MappedFile> MappedFile::Open(int fd, std::string_view what) {
  struct stat info{};
  if (::fstat(fd, &info) != 0) return Fail(ErrnoError(errno, fmt::format("looking at {}", what)));
  const auto size = static_cast<std::size_t>(info.st_size);
  if (size == 0) return MappedFile(nullptr, 0);
  void* const data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) return Fail(ErrnoError(errno, fmt::format("mapping {}", what)));
  return MappedFile(data, size);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

}  // namespace millrace
