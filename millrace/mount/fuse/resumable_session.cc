#include "millrace/mount/fuse/resumable_session.h"

#include <fcntl.h>
#include <linux/fuse.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "millrace/base/bytes.h"
#include "millrace/base/files/files.h"
#include "millrace/mount/fuse/request.h"

namespace millrace::mount {
namespace {

// Copied names and numbers of include/uapi/linux/fuse.h in Linux 6.9; the headers of Debian 12 are older.
constexpr std::int32_t kNotifyResend = 7;                  // FUSE_NOTIFY_RESEND
constexpr std::uint64_t kUniqueResend = 1ULL << 63;        // FUSE_UNIQUE_RESEND
constexpr std::uint32_t kHasResendHigh = 1U << (39 - 32);  // FUSE_HAS_RESEND, in fuse_init_in::flags2
constexpr std::uint32_t kInitExt = 1U << 30;               // FUSE_INIT_EXT: there are flags2

/// The room for headers in a buffer, beside the data of a write. As in libfuse.
constexpr std::size_t kHeaders = 4096;

thread_local RequestOrigin current_request;

/// Gives the buffer's pages memory. The kernel copies a request without looking for signals if the pages are there.
/// Else SIGKILL amid the copy would end the request with EIO, and no other process would get it.
void Populate(MutableByteSpan buffer) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<std::uintptr_t>(buffer.data()) & ~(page - 1);
  const auto end = (reinterpret_cast<std::uintptr_t>(buffer.data()) + buffer.size() + page - 1) & ~(page - 1);
  // A failure costs no more than that protection.
  (void)::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_POPULATE_WRITE);
}

/// Reads one request. Returns 0 if there is none yet, or the mount has ended.
Result<std::size_t> ReadRequest(fuse_session* session, MutableByteSpan buffer) {
  const ssize_t got = ::read(fuse_session_fd(session), buffer.data(), buffer.size());
  if (got >= static_cast<ssize_t>(sizeof(fuse_in_header))) return static_cast<std::size_t>(got);
  if (got >= 0) return Fail(Code::kIo, "the kernel's request has only {} bytes", got);
  if (errno == EINTR || errno == EAGAIN || errno == ENOENT) return 0;  // ENOENT: the request was cancelled meanwhile
  if (errno != ENODEV) return Fail(ErrnoError(errno, "reading the kernel's requests"));
  fuse_session_exit(session);
  return 0;
}

void Process(fuse_session* session, MutableByteSpan request) {
  fuse_buf buffer{};
  buffer.size = request.size();
  buffer.mem = request.data();
  fuse_session_process_buf(session, &buffer);
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

Status ResumableSession::Resume(fuse_session* session, SessionStart start, int device) {
  start_ = std::move(start);
  resumed_ = true;
  // libfuse takes /dev/fd/N for a descriptor that is mounted already.
  if (fuse_session_mount(session, fmt::format("/dev/fd/{}", device).c_str()) == 0) return {};
  return Fail(Code::kInternal, "libfuse refuses the FUSE descriptor; see the message above");
}

Status ResumableSession::ServeInit(fuse_session* session) {
  if (!resumed_) {
    Buffer buffer(kMaxRequest + kHeaders);
    std::size_t size = 0;
    while (size == 0 && !fuse_session_exited(session)) size = MR_TRY(ReadRequest(session, buffer.span()));
    const MutableByteSpan request = buffer.span().first(size);
    const std::string bytes(AsText(request));
    if (Load<fuse_in_header>(bytes, 0).opcode == FUSE_INIT) start_.request = bytes;
    if (size > 0) Process(session, request);
    if (start_.request.empty()) return Fail(Code::kIo, "the mount has ended before it began");
    return {};
  }
  // The kernel has the other process's answer to INIT. This one's goes to /dev/null.
  const int device = fuse_session_fd(session);
  const UniqueFd kept(::fcntl(device, F_DUPFD_CLOEXEC, 0)), nowhere(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!kept || !nowhere || ::dup3(nowhere.get(), device, O_CLOEXEC) < 0) {
    return Fail(ErrnoError(errno, "resuming the FUSE session"));
  }
  std::string request = start_.request;
  Process(session, AsWritableBytes(request));
  if (::dup3(kept.get(), device, O_CLOEXEC) < 0) return Fail(ErrnoError(errno, "resuming the FUSE session"));
  return {};
}

Status ResumableSession::RequestResend(fuse_session* session) {
  fuse_out_header notification{};
  notification.len = sizeof notification;
  notification.error = kNotifyResend;
  const ssize_t written = ::write(fuse_session_fd(session), &notification, sizeof notification);
  if (written == sizeof notification) return {};
  return Fail(ErrnoError(errno, "this kernel does not send requests again"));
}

Status ResumableSession::Serve(fuse_session* session, int most_threads) {
  MutexLock lock(mutex_);
  most_workers_ = static_cast<std::size_t>(most_threads);
  MR_TRY(StartWorker(session));
  while (running_ > 0) {
    if (!fuse_session_exited(session)) {
      changed_.Wait(mutex_);
      continue;
    }
    // Again and again: a signal that comes just before a read does not interrupt it. Those that serve a request are
    // left alone, since the signal would interrupt their system calls.
    for (Worker& worker : workers_) {
      if (worker.reads) ::pthread_kill(worker.thread.native_handle(), SIGUSR1);
    }
    changed_.WaitUntil(mutex_, std::chrono::steady_clock::now() + std::chrono::milliseconds(10), {},
                       [this]() MR_NO_THREAD_SAFETY_ANALYSIS { return running_ == 0; });
  }
  workers_.clear();
  return failed_;
}

void ResumableSession::Stop(fuse_session* session) {
  fuse_session_exit(session);
  MutexLock lock(mutex_);
  changed_.NotifyAll();
}

Status ResumableSession::StartWorker(fuse_session* session) {
  // The signals that end a program are for its other threads, as with libfuse's loop.
  sigset_t ends, before;
  sigemptyset(&ends);
  for (int signal : {SIGTERM, SIGINT, SIGHUP, SIGQUIT}) sigaddset(&ends, signal);
  pthread_sigmask(SIG_BLOCK, &ends, &before);
  Status started;
  Worker& worker = workers_.emplace_back();
  try {
    worker.thread = std::jthread([this, session, &worker] { Work(session, worker); });
    ++running_;
  } catch (const std::system_error& error) {
    workers_.pop_back();
    started = Fail(Code::kUnavailable, "cannot start a thread: {}", error.what());
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return started;
}

void ResumableSession::Work(fuse_session* session, Worker& worker) {
  Status served = ServeRequests(session, worker);
  MutexLock lock(mutex_);
  if (!served && failed_) failed_ = std::move(served);
  fuse_session_exit(session);
  --running_;
  changed_.NotifyAll();
}

Status ResumableSession::ServeRequests(fuse_session* session, Worker& worker) {
  Buffer buffer(kMaxRequest + kHeaders);
  Populate(buffer.span());
  while (!fuse_session_exited(session)) {
    {
      MutexLock lock(mutex_);
      worker.reads = true;
    }
    const Result<std::size_t> size = ReadRequest(session, buffer.span());
    fuse_in_header header{};
    if (size && *size > 0) std::memcpy(&header, buffer.span().data(), sizeof header);
    const bool forgets = header.opcode == FUSE_FORGET || header.opcode == FUSE_BATCH_FORGET;  // done at once
    {
      MutexLock lock(mutex_);
      worker.reads = false;
      const bool is_last = std::ranges::none_of(workers_, &Worker::reads);
      if (header.unique != 0 && !forgets && is_last && workers_.size() < most_workers_) {
        (void)StartWorker(session);  // after a failure, the threads that there are go on
      }
    }
    if (!size) return Fail(size.error());
    if (*size == 0) continue;
    current_request = {.number = header.unique & ~kUniqueResend, .repeated = (header.unique & kUniqueResend) != 0};
    Process(session, buffer.span().first(*size));
  }
  return {};
}

}  // namespace millrace::mount
