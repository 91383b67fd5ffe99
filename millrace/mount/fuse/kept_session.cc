#include "millrace/mount/fuse/kept_session.h"

#include <linux/fuse.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "millrace/mount/fuse/request.h"

namespace millrace::mount {
namespace {

// Copied names and numbers of include/uapi/linux/fuse.h in Linux 6.9; the headers of Debian 12 are older.
constexpr std::int32_t kNotifyResend = 7;                  // FUSE_NOTIFY_RESEND
constexpr std::uint64_t kUniqueResend = 1ULL << 63;        // FUSE_UNIQUE_RESEND
constexpr std::uint32_t kHasResendHigh = 1U << (39 - 32);  // FUSE_HAS_RESEND, in fuse_init_in::flags2
constexpr std::uint32_t kInitExt = 1U << 30;               // FUSE_INIT_EXT: there are flags2

thread_local RequestOrigin current_request;

/// Gives the pages of a thread's buffer memory. The kernel copies a request without looking for signals if the pages
/// are there. Else SIGKILL amid the copy would end the request with EIO, and no other process would get it.
void PopulateOnce(void* buffer, std::size_t size) {
  thread_local const void* populated = nullptr;
  if (populated == buffer) return;
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<std::uintptr_t>(buffer) & ~(page - 1);
  const auto end = (reinterpret_cast<std::uintptr_t>(buffer) + size + page - 1) & ~(page - 1);
  // A failure costs no more than that protection.
  (void)::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_POPULATE_WRITE);
  populated = buffer;
}

template <class T>
T Load(const std::string& bytes, std::size_t at) {
  T value{};
  if (bytes.size() >= at + sizeof value) std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

}  // namespace

const RequestOrigin& RequestOrigin::Current() { return current_request; }

bool SessionStart::can_resend() const {
  // fuse_init_in: major, minor, max_readahead, flags, flags2.
  const std::size_t at = sizeof(fuse_in_header);
  const auto flags = Load<std::uint32_t>(request, at + 12), flags2 = Load<std::uint32_t>(request, at + 16);
  return (flags & kInitExt) != 0 && (flags2 & kHasResendHigh) != 0;
}

Status KeptSession::SetIo(fuse_session* session, KeptSession* kept, int device) {
  // libfuse hands the session's user data to these functions, a RequestContext.
  constexpr fuse_custom_io kIo = {.writev = &Write, .read = &Read, .splice_receive = nullptr, .splice_send = nullptr};
  if (const int set = fuse_session_custom_io(session, &kIo, device); set != 0) {
    return Fail(ErrnoError(-set, "libfuse refuses the FUSE descriptor"));
  }
  kept->in_init_ = true;
  return {};
}

Status KeptSession::Attach(fuse_session* session, KeptSession* kept) {
  return SetIo(session, kept, fuse_session_fd(session));
}

Status KeptSession::Resume(fuse_session* session, KeptSession* kept, SessionStart start, int device) {
  kept->start_ = std::move(start);
  kept->resumed_ = true;
  return SetIo(session, kept, device);
}

Status KeptSession::ServeInit(fuse_session* session) {
  fuse_buf buffer{};
  const int read = fuse_session_receive_buf(session, &buffer);
  if (read > 0) fuse_session_process_buf(session, &buffer);
  std::free(buffer.mem);
  in_init_ = false;
  if (read < 0) return Fail(ErrnoError(-read, "reading the first request of the kernel"));
  if (read == 0 || start_.request.empty()) return Fail(Code::kIo, "the mount has ended before it began");
  return {};
}

Status KeptSession::RequestResend(fuse_session* session) {
  fuse_out_header notification{};
  notification.len = sizeof notification;
  notification.error = kNotifyResend;
  const ssize_t written = ::write(fuse_session_fd(session), &notification, sizeof notification);
  if (written == sizeof notification) return {};
  return Fail(ErrnoError(errno, "this kernel does not send requests again"));
}

ssize_t KeptSession::Read(int fd, void* buffer, size_t size, void* userdata) {
  KeptSession& kept = *static_cast<RequestContext*>(userdata)->kept;
  if (kept.in_init_ && kept.resumed_) {
    const std::string& request = kept.start_.request;
    if (request.size() > size) return errno = EINVAL, -1;
    std::memcpy(buffer, request.data(), request.size());
    return static_cast<ssize_t>(request.size());
  }
  PopulateOnce(buffer, size);
  const ssize_t got = ::read(fd, buffer, size);
  if (got < static_cast<ssize_t>(sizeof(fuse_in_header))) return got;
  fuse_in_header header{};
  std::memcpy(&header, buffer, sizeof header);
  current_request = {.number = header.unique & ~kUniqueResend, .repeated = (header.unique & kUniqueResend) != 0};
  if (kept.in_init_ && header.opcode == FUSE_INIT) {
    kept.start_.request.assign(static_cast<const char*>(buffer), static_cast<std::size_t>(got));
  }
  return got;
}

ssize_t KeptSession::Write(int fd, iovec* pieces, int count, void* userdata) {
  const KeptSession& kept = *static_cast<RequestContext*>(userdata)->kept;
  if (!kept.in_init_ || !kept.resumed_) return ::writev(fd, pieces, count);
  // The kernel has the other process's answer to INIT.
  ssize_t size = 0;
  for (int i = 0; i < count; ++i) size += static_cast<ssize_t>(pieces[i].iov_len);
  return size;
}

}  // namespace millrace::mount
