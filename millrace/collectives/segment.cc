#include "millrace/collectives/segment.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>

#include "millrace/base/files/files.h"
#include "millrace/base/hash/random.h"

namespace millrace::collectives {

Result<std::shared_ptr<Segment>> Segment::Map(int fd, std::size_t bytes, int flags) {
  void* const data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
  if (data == MAP_FAILED) return Fail(ErrnoError(errno, fmt::format("mapping {} bytes of shared memory", bytes)));
  return std::shared_ptr<Segment>(new Segment(static_cast<std::byte*>(data), bytes, {}));
}

Result<std::shared_ptr<Segment>> Segment::Create(std::size_t bytes) {
  const std::string name = "/millrace-" + SecureHex(8);
  const UniqueFd fd(::shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!fd) return Fail(ErrnoError(errno, "creating shared memory " + name));
  // Without pages behind it, a write to a full /dev/shm would kill the process (SIGBUS).
  if (const int error = ::posix_fallocate(fd.get(), 0, static_cast<off_t>(bytes)); error != 0) {
    ::shm_unlink(name.c_str());
    return Fail(ErrnoError(error, fmt::format("reserving {} bytes in /dev/shm", bytes)));
  }
  auto segment = Map(fd.get(), bytes, MAP_SHARED | MAP_POPULATE);
  if (!segment) {
    ::shm_unlink(name.c_str());
    return segment;
  }
  (*segment)->name_ = name;
  return segment;
}

Result<std::shared_ptr<Segment>> Segment::Attach(const std::string& name, std::size_t bytes) {
  const UniqueFd fd(::shm_open(name.c_str(), O_RDWR | O_CLOEXEC, 0));
  if (!fd) return Fail(ErrnoError(errno, "opening shared memory " + name));
  return Map(fd.get(), bytes, MAP_SHARED | MAP_POPULATE);
}

Result<std::shared_ptr<Segment>> Segment::CreatePrivate(std::size_t bytes) {
  return Map(-1, bytes, MAP_SHARED | MAP_ANONYMOUS);
}

Segment::~Segment() {
  Unlink();
  ::munmap(data_, bytes_);
}

void Segment::Unlink() {
  if (!name_.empty()) ::shm_unlink(std::exchange(name_, {}).c_str());
}

}  // namespace millrace::collectives
