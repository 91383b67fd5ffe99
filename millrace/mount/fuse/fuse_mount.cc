#include "millrace/mount/fuse/fuse_mount.h"

#include <linux/fs.h>
#include <poll.h>
#include <signal.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <thread>
#include <vector>

#include "millrace/base/hash/random.h"
#include "millrace/base/threads/sync.h"
#include "millrace/mount/fuse/attributes.h"
#include "millrace/mount/fuse/hints.h"
#include "millrace/mount/fuse/request.h"
#include "millrace/mount/status/control.h"
#include "millrace/mount/status/mount_stats.h"
#include "millrace/object/file/mount_hints.h"
#include "millrace/object/file/mount_location.h"

namespace millrace::mount {
namespace {

constexpr std::uint64_t kMaxRequest = 1 * kMiB;        // the kernel's limit for one read or write: 256 pages
constexpr auto kLookForEnd = std::chrono::seconds(1);  // the delay after an unmount until waiting reads are cancelled

/// An open file as the kernel knows it.
struct FileHandle {
  std::unique_ptr<vfs::File> file;
  pid_t opener = 0;  ///< the process that opened it for writing
};

/// Runs a handler and counts how long it took; every handler has replied when it returns.
template <auto member, MountOperation operation>
struct Counted;

class FuseServer final : public FuseMount, private RequestContext {
 public:
  FuseServer(vfs::Tree& served, FuseOptions how) : RequestContext{served, std::move(how), {}} {}
  ~FuseServer() override;

  Status Mount();
  Status Serve(std::function<void()> live, std::stop_token stop) override;

 private:
  template <auto member, MountOperation operation>
  friend struct Counted;
  static const fuse_lowlevel_ops kOperations;
  static fuse_lowlevel_ops CountedOperations();
  static FuseServer& Of(fuse_req_t request) { return static_cast<FuseServer&>(RequestContext::Of(request)); }
  static FileHandle& HandleOf(const fuse_file_info* info) { return *reinterpret_cast<FileHandle*>(info->fh); }

  static void Init(void* self, fuse_conn_info* connection);
  static void Lookup(fuse_req_t request, fuse_ino_t parent, const char* name);
  static void Forget(fuse_req_t request, fuse_ino_t inode, std::uint64_t lookups);
  static void ForgetMany(fuse_req_t request, std::size_t count, fuse_forget_data* forgets);
  static void GetAttributes(fuse_req_t request, fuse_ino_t inode, fuse_file_info* info);
  static void SetAttributes(fuse_req_t request, fuse_ino_t inode, struct stat* wanted, int which, fuse_file_info* info);
  static void MakeDirectory(fuse_req_t request, fuse_ino_t parent, const char* name, mode_t mode);
  static void Unlink(fuse_req_t request, fuse_ino_t parent, const char* name);
  static void RemoveDirectory(fuse_req_t request, fuse_ino_t parent, const char* name);
  static void Rename(fuse_req_t request, fuse_ino_t parent, const char* name, fuse_ino_t new_parent,
                     const char* new_name, unsigned flags);
  static void Open(fuse_req_t request, fuse_ino_t inode, fuse_file_info* info);
  static void Create(fuse_req_t request, fuse_ino_t parent, const char* name, mode_t mode, fuse_file_info* info);
  static void Read(fuse_req_t request, fuse_ino_t inode, std::size_t size, off_t offset, fuse_file_info* info);
  static void Write(fuse_req_t request, fuse_ino_t inode, const char* bytes, std::size_t size, off_t offset,
                    fuse_file_info* info);
  static void Allocate(fuse_req_t request, fuse_ino_t inode, int mode, off_t offset, off_t length,
                       fuse_file_info* info);
  static void Flush(fuse_req_t request, fuse_ino_t inode, fuse_file_info* info);
  static void Sync(fuse_req_t request, fuse_ino_t inode, int data_only, fuse_file_info* info);
  static void Release(fuse_req_t request, fuse_ino_t inode, fuse_file_info* info);
  static void OpenDirectory(fuse_req_t request, fuse_ino_t inode, fuse_file_info* info);
  static void ReadDirectory(fuse_req_t request, fuse_ino_t inode, std::size_t size, off_t offset, fuse_file_info* info);
  static void ReadDirectoryPlus(fuse_req_t request, fuse_ino_t inode, std::size_t size, off_t offset,
                                fuse_file_info* info);
  static void ReleaseDirectory(fuse_req_t request, fuse_ino_t inode, fuse_file_info* info);
  static void SyncDirectory(fuse_req_t request, fuse_ino_t, int, fuse_file_info*) { fuse_reply_err(request, 0); }
  static void StatFs(fuse_req_t request, fuse_ino_t inode);
  static void Control(fuse_req_t request, fuse_ino_t inode, unsigned command, void* argument, fuse_file_info* info,
                      unsigned flags, const void* in, std::size_t in_size, std::size_t out_size);
  void Locate(fuse_req_t request, fuse_ino_t directory);
  void WillOpen(fuse_req_t request, fuse_ino_t directory, ByteSpan argument);

  void ReplyError(fuse_req_t request, const char* operation, fuse_ino_t inode, const Error& error) const {
    fuse_reply_err(request, LogFailure(options, operation, inode, error));
  }
  void ReplyStatus(fuse_req_t request, const char* operation, fuse_ino_t inode, const Status& status) const {
    status ? void(fuse_reply_err(request, 0)) : ReplyError(request, operation, inode, status.error());
  }
  void FillDirectory(fuse_req_t request, fuse_ino_t inode, std::size_t size, off_t offset, fuse_file_info* info,
                     bool plus);
  void Keep(std::unique_ptr<vfs::File> file, fuse_req_t request, bool writes, fuse_file_info* info) MR_EXCLUDES(mutex_);

  Status Drop(fuse_file_info* info) MR_EXCLUDES(mutex_);
  void Drop(vfs::Directory* directory) MR_EXCLUDES(mutex_);

  fuse_session* session_ = nullptr;
  bool mounted_ = false;
  std::function<void()> live_;

  Mutex mutex_;
  /// Open files and directories. The mount owns them, because an unmount may come before the kernel releases them.
  std::set<FileHandle*> files_ MR_GUARDED_BY(mutex_);
  std::set<vfs::Directory*> directories_ MR_GUARDED_BY(mutex_);
};

// clang-format off
const fuse_lowlevel_ops FuseServer::kOperations = {
    .init = &Init, .lookup = &Lookup, .forget = &Forget, .getattr = &GetAttributes, .setattr = &SetAttributes,
    .readlink = &HandleReadLink, .mknod = &HandleMakeNode, .mkdir = &MakeDirectory, .unlink = &Unlink,
    .rmdir = &RemoveDirectory, .symlink = &HandleSymlink, .rename = &Rename, .link = &HandleLink,
    .open = &Open, .read = &Read, .write = &Write, .flush = &Flush, .release = &Release, .fsync = &Sync,
    .opendir = &OpenDirectory, .readdir = &ReadDirectory, .releasedir = &ReleaseDirectory, .fsyncdir = &SyncDirectory,
    .statfs = &StatFs, .setxattr = &HandleSetXattr, .getxattr = &HandleGetXattr, .listxattr = &HandleListXattrs,
    .removexattr = &HandleRemoveXattr, .create = &Create, .ioctl = &Control, .forget_multi = &ForgetMany, .fallocate = &Allocate,
    .readdirplus = &ReadDirectoryPlus};
// clang-format on

template <class... Arguments, void (*fuse_lowlevel_ops::*member)(fuse_req_t, Arguments...), MountOperation operation>
struct Counted<member, operation> {
  static void Run(fuse_req_t request, Arguments... arguments) {
    MountStats& stats = *FuseServer::Of(request).options.stats;  // before the reply, which destroys the request
    const TimePoint began = SystemClock().Now();
    (FuseServer::kOperations.*member)(request, arguments...);
    stats.Count(operation, SystemClock().Now() - began);
  }
};

fuse_lowlevel_ops FuseServer::CountedOperations() {
  fuse_lowlevel_ops counted = kOperations;
  counted.lookup = &Counted<&fuse_lowlevel_ops::lookup, MountOperation::kLookup>::Run;
  counted.getattr = &Counted<&fuse_lowlevel_ops::getattr, MountOperation::kStat>::Run;
  counted.setattr = &Counted<&fuse_lowlevel_ops::setattr, MountOperation::kSetAttributes>::Run;
  counted.open = &Counted<&fuse_lowlevel_ops::open, MountOperation::kOpen>::Run;
  counted.create = &Counted<&fuse_lowlevel_ops::create, MountOperation::kCreate>::Run;
  counted.read = &Counted<&fuse_lowlevel_ops::read, MountOperation::kRead>::Run;
  counted.write = &Counted<&fuse_lowlevel_ops::write, MountOperation::kWrite>::Run;
  counted.flush = &Counted<&fuse_lowlevel_ops::flush, MountOperation::kFlush>::Run;
  counted.fsync = &Counted<&fuse_lowlevel_ops::fsync, MountOperation::kSync>::Run;
  counted.release = &Counted<&fuse_lowlevel_ops::release, MountOperation::kRelease>::Run;
  counted.readdir = &Counted<&fuse_lowlevel_ops::readdir, MountOperation::kReadDirectory>::Run;
  counted.readdirplus = &Counted<&fuse_lowlevel_ops::readdirplus, MountOperation::kReadDirectory>::Run;
  counted.getxattr = &Counted<&fuse_lowlevel_ops::getxattr, MountOperation::kGetXattr>::Run;
  counted.mkdir = &Counted<&fuse_lowlevel_ops::mkdir, MountOperation::kMakeDirectory>::Run;
  counted.unlink = &Counted<&fuse_lowlevel_ops::unlink, MountOperation::kUnlink>::Run;
  counted.rmdir = &Counted<&fuse_lowlevel_ops::rmdir, MountOperation::kRemoveDirectory>::Run;
  counted.rename = &Counted<&fuse_lowlevel_ops::rename, MountOperation::kRename>::Run;
  return counted;
}

// --- The session ---

Status FuseServer::Mount() {
  std::string source;
  for (char c : options.source) {  // the separator of mount options
    if (c == ',' || c == '\\') source += '\\';
    source += c;
  }
  std::string flags = fmt::format("fsname={},subtype=millrace,default_permissions,max_read={}", source, kMaxRequest);
  if (options.allow_other) flags += ",allow_other";
  if (options.read_only) flags += ",ro";
  std::vector<std::string> words = {"millrace", "-o", flags};
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  fuse_args arguments = FUSE_ARGS_INIT(static_cast<int>(argv.size()), argv.data());
  const fuse_lowlevel_ops operations = CountedOperations();
  session_ = fuse_session_new(&arguments, &operations, sizeof operations, static_cast<RequestContext*>(this));
  fuse_opt_free_args(&arguments);
  if (session_ == nullptr) return Fail(Code::kInternal, "libfuse refuses the mount options {}", flags);
  if (fuse_session_mount(session_, options.mount_point.c_str()) != 0) {
    return Fail(Code::kIo, "cannot mount on {}{}", options.mount_point,
                options.allow_other && ::geteuid() != 0 ? ": --allow-other needs user_allow_other in /etc/fuse.conf"
                                                        : "; see the message above");
  }
  mounted_ = true;
  return {};
}

FuseServer::~FuseServer() {
  if (session_ != nullptr) {
    if (mounted_) fuse_session_unmount(session_);
    fuse_session_destroy(session_);
  }
  MutexLock lock(mutex_);
  for (FileHandle* handle : files_) delete handle;
  for (vfs::Directory* directory : directories_) delete directory;
}

Status FuseServer::Serve(std::function<void()> live, std::stop_token stop) {
  live_ = std::move(live);
  // libfuse waits in sem_wait. Only a signal to this thread interrupts it.
  struct sigaction nothing{};
  nothing.sa_handler = [](int) {};
  sigaction(SIGUSR1, &nothing, nullptr);
  std::jthread stopper([&, server = pthread_self()](std::stop_token served) {
    Mutex mutex;
    CondVar woken;
    std::stop_callback wake(stop, [&] {
      MutexLock lock(mutex);
      woken.NotifyAll();
    });
    MutexLock lock(mutex);
    while (!woken.WaitUntil(mutex, std::chrono::steady_clock::now() + kLookForEnd, served,
                            [&] { return stop.stop_requested(); })) {
      if (served.stop_requested()) return;
      // Unmounted: no program waits for reads under way. Cancels them, so that they do not delay the end.
      if (pollfd device{fuse_session_fd(session_), 0, 0}; ::poll(&device, 1, 0) > 0) ended.request_stop();
    }
    ended.request_stop();
    fuse_session_exit(session_);
    while (!served.stop_requested()) {  // until the serving thread has seen the signal
      pthread_kill(server, SIGUSR1);
      woken.WaitUntil(mutex, std::chrono::steady_clock::now() + std::chrono::milliseconds(10), served,
                      [] { return false; });
    }
  });
  fuse_loop_config* config = fuse_loop_cfg_create();
  fuse_loop_cfg_set_clone_fd(config, 1);
  fuse_loop_cfg_set_max_threads(config, static_cast<unsigned>(options.max_threads));
  fuse_loop_cfg_set_idle_threads(config, static_cast<unsigned>(options.max_threads));
  const int result = fuse_session_loop_mt(session_, config);
  fuse_loop_cfg_destroy(config);
  stopper.request_stop();
  stopper.join();
  Status flushed = tree.FlushAll({.stop = {}, .deadline = Deadline::After(SystemClock(), options.flush_timeout)});
  if (!flushed) {
    const vfs::PendingWrites left = tree.pending();
    options.log.Error("not all that was written could be published; the next mount goes on with what is staged",
                      {{"files", left.files}, {"bytes", left.bytes}, {"reason", flushed.error()}});
    return flushed;
  }
  if (result < 0) return Fail(ErrnoError(-result, "serving the mount"));
  return {};
}

void FuseServer::Init(void* self, fuse_conn_info* connection) {
  auto& server = static_cast<FuseServer&>(*static_cast<RequestContext*>(self));
  connection->want &= ~(FUSE_CAP_WRITEBACK_CACHE | FUSE_CAP_SPLICE_READ | FUSE_CAP_SPLICE_WRITE | FUSE_CAP_SPLICE_MOVE |
                        FUSE_CAP_HANDLE_KILLPRIV);            // the kernel drops set-id bits itself, by chmod
  connection->max_read = static_cast<unsigned>(kMaxRequest);  // must repeat the mount option
  connection->max_write = static_cast<unsigned>(kMaxRequest);
  connection->max_readahead = static_cast<unsigned>(server.options.kernel_read_ahead);
  connection->max_background = 64;
  connection->congestion_threshold = 48;
  connection->time_gran = 1;
  if (server.live_) server.live_();
}

// --- Names ---

void FuseServer::Lookup(fuse_req_t request, fuse_ino_t parent, const char* name) {
  FuseServer& server = Of(request);
  Result<std::optional<vfs::CacheableAttributes>> found = [&] {
    Interruptible wait(request);
    return server.tree.Lookup(parent, name, wait.call());
  }();
  if (!found) return server.ReplyError(request, "lookup", parent, found.error());
  fuse_entry_param param{};
  param.entry_timeout = Seconds(server.tree.negative_ttl());  // an inode of 0 is remembered as absent
  if (*found) param = ToEntry(**found);
  if (fuse_reply_entry(request, &param) != 0 && *found) server.tree.Forget(param.ino, 1);
}

void FuseServer::Forget(fuse_req_t request, fuse_ino_t inode, std::uint64_t lookups) {
  Of(request).tree.Forget(inode, lookups);
  fuse_reply_none(request);
}

void FuseServer::ForgetMany(fuse_req_t request, std::size_t count, fuse_forget_data* forgets) {
  for (std::size_t i = 0; i < count; ++i) Of(request).tree.Forget(forgets[i].ino, forgets[i].nlookup);
  fuse_reply_none(request);
}

void FuseServer::GetAttributes(fuse_req_t request, fuse_ino_t inode, fuse_file_info*) {
  FuseServer& server = Of(request);
  auto entry = [&] {
    Interruptible wait(request);
    return server.tree.GetAttributes(inode, wait.call());
  }();
  if (!entry) return server.ReplyError(request, "stat", inode, entry.error());
  struct stat info = ToStat(entry->attributes);
  fuse_reply_attr(request, &info, Seconds(entry->valid_for));
}

void FuseServer::SetAttributes(fuse_req_t request, fuse_ino_t inode, struct stat* wanted, int which,
                               fuse_file_info* info) {
  FuseServer& server = Of(request);
  vfs::AttributeChange change = ToChange(*wanted, which);
  if (which & FUSE_SET_ATTR_SIZE) change.size = static_cast<std::uint64_t>(wanted->st_size);
  auto entry = server.tree.SetAttributes(inode, change, info ? HandleOf(info).file.get() : nullptr);
  if (!entry) return server.ReplyError(request, "setattr", inode, entry.error());
  struct stat now = ToStat(entry->attributes);
  fuse_reply_attr(request, &now, Seconds(entry->valid_for));
}

void FuseServer::MakeDirectory(fuse_req_t request, fuse_ino_t parent, const char* name, mode_t mode) {
  FuseServer& server = Of(request);
  auto made = server.tree.MakeDirectory(parent, name, OwnershipOf(request, mode));
  if (!made) return server.ReplyError(request, "mkdir", parent, made.error());
  fuse_entry_param param = ToEntry(*made);
  if (fuse_reply_entry(request, &param) != 0) server.tree.Forget(param.ino, 1);
}

void FuseServer::Unlink(fuse_req_t request, fuse_ino_t parent, const char* name) {
  Of(request).ReplyStatus(request, "unlink", parent, Of(request).tree.Unlink(parent, name));
}

void FuseServer::RemoveDirectory(fuse_req_t request, fuse_ino_t parent, const char* name) {
  Of(request).ReplyStatus(request, "rmdir", parent, Of(request).tree.RemoveDirectory(parent, name));
}

void FuseServer::Rename(fuse_req_t request, fuse_ino_t parent, const char* name, fuse_ino_t new_parent,
                        const char* new_name, unsigned flags) {
  if (flags & ~static_cast<unsigned>(RENAME_NOREPLACE)) return void(fuse_reply_err(request, EINVAL));
  Of(request).ReplyStatus(
      request, "rename", parent,
      Of(request).tree.Rename(parent, name, new_parent, new_name, {.no_replace = (flags & RENAME_NOREPLACE) != 0}));
}

// --- Files ---

void FuseServer::Keep(std::unique_ptr<vfs::File> file, fuse_req_t request, bool writes, fuse_file_info* info) {
  auto handle = std::make_unique<FileHandle>();
  handle->file = std::move(file);
  if (writes) handle->opener = ProcessOf(request);
  info->fh = reinterpret_cast<std::uint64_t>(handle.get());
  info->keep_cache = handle->file->may_keep_pages();
  info->noflush = !writes;
  MutexLock lock(mutex_);
  files_.insert(handle.release());
}

void FuseServer::Open(fuse_req_t request, fuse_ino_t inode, fuse_file_info* info) {
  FuseServer& server = Of(request);
  const int access = info->flags & O_ACCMODE;
  const bool writes = access != O_RDONLY;
  auto file = [&] {
    Interruptible wait(request);
    return server.tree.OpenFile(
        inode, {.read = access != O_WRONLY, .write = writes, .truncate = (info->flags & O_TRUNC) != 0}, wait.call());
  }();
  if (!file) return server.ReplyError(request, "open", inode, file.error());
  // The kernel has cached the size of the version before.
  if ((*file)->found_change()) fuse_lowlevel_notify_inval_inode(server.session_, inode, -1, 0);
  server.Keep(*std::move(file), request, writes, info);
  if (fuse_reply_open(request, info) != 0) (void)server.Drop(info);  // the caller was killed meanwhile
}

void FuseServer::Create(fuse_req_t request, fuse_ino_t parent, const char* name, mode_t mode, fuse_file_info* info) {
  FuseServer& server = Of(request);
  auto created = server.tree.Create(parent, name, (info->flags & O_EXCL) != 0, OwnershipOf(request, mode));
  if (created && (info->flags & O_TRUNC)) {
    if (Status cut = created->file->Truncate(0); !cut) created = Fail(cut.error());
  }
  if (!created) return server.ReplyError(request, "create", parent, created.error());
  fuse_entry_param param = ToEntry(created->entry);
  server.Keep(std::move(created->file), request, true, info);
  if (fuse_reply_create(request, &param, info) != 0) {
    (void)server.Drop(info);
    server.tree.Forget(param.ino, 1);
  }
}

void FuseServer::Read(fuse_req_t request, fuse_ino_t inode, std::size_t size, off_t offset, fuse_file_info* info) {
  thread_local Buffer buffer;  // for bytes that the cache does not keep
  if (buffer.size() < size) buffer = Buffer(std::max<std::size_t>(size, kMaxRequest));
  auto read = [&] {
    Interruptible wait(request);
    return HandleOf(info).file->ReadView(static_cast<std::uint64_t>(offset), buffer.span().first(size), wait.call());
  }();
  if (!read) return Of(request).ReplyError(request, "read", inode, read.error());
  std::vector<iovec> pieces;
  for (const auto& piece : read->segments) {
    pieces.push_back({const_cast<std::byte*>(piece.bytes.data()), piece.bytes.size()});
  }
  Of(request).options.stats->CountRead(read->size());
  fuse_reply_iov(request, pieces.data(), static_cast<int>(pieces.size()));
}

void FuseServer::Write(fuse_req_t request, fuse_ino_t inode, const char* bytes, std::size_t size, off_t offset,
                       fuse_file_info* info) {
  // Not interruptible: after half a write, the file would have to fail.
  Status written = HandleOf(info).file->Write(static_cast<std::uint64_t>(offset), AsBytes({bytes, size}));
  if (!written) return Of(request).ReplyError(request, "write", inode, written.error());
  Of(request).options.stats->CountWrite(size);
  fuse_reply_write(request, size);
}

void FuseServer::Allocate(fuse_req_t request, fuse_ino_t inode, int mode, off_t offset, off_t length,
                          fuse_file_info* info) {
  FuseServer& server = Of(request);
  vfs::File& file = *HandleOf(info).file;
  const bool zeros = (mode & (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE)) != 0;
  if (mode & ~(FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE)) {
    return void(fuse_reply_err(request, EOPNOTSUPP));
  }
  const auto begin = static_cast<std::uint64_t>(offset), bytes = static_cast<std::uint64_t>(length);
  Status done = zeros ? file.Zero(begin, bytes) : Status();
  if (done && !(mode & FALLOC_FL_KEEP_SIZE)) {
    auto entry = server.tree.GetAttributes(inode);
    if (!entry) done = Fail(entry.error());
    if (entry && entry->attributes.size < begin + bytes) done = file.Truncate(begin + bytes);
  }
  server.ReplyStatus(request, "fallocate", inode, done);
}

void FuseServer::Flush(fuse_req_t request, fuse_ino_t inode, fuse_file_info* info) {
  FileHandle& handle = HandleOf(info);
  // Children that inherited the descriptor close it when they end; the file is still being written by their parent.
  const pid_t closer = handle.opener == 0 ? 0 : ProcessOf(request);
  if (closer != 0 && closer != handle.opener) return void(fuse_reply_err(request, 0));
  Of(request).ReplyStatus(request, "close", inode, handle.file->Flush());
}

void FuseServer::Sync(fuse_req_t request, fuse_ino_t inode, int, fuse_file_info* info) {
  Of(request).ReplyStatus(request, "fsync", inode, HandleOf(info).file->Sync());
}

void FuseServer::Release(fuse_req_t request, fuse_ino_t inode, fuse_file_info* info) {
  Of(request).ReplyStatus(request, "the last close", inode, Of(request).Drop(info));
}

Status FuseServer::Drop(fuse_file_info* info) {
  std::unique_ptr<FileHandle> handle(&HandleOf(info));
  {
    MutexLock lock(mutex_);
    files_.erase(handle.get());
  }
  return handle->file->Close();
}

// --- Directories ---

void FuseServer::OpenDirectory(fuse_req_t request, fuse_ino_t inode, fuse_file_info* info) {
  FuseServer& server = Of(request);
  auto directory = server.tree.OpenDirectory(inode);
  if (!directory) return server.ReplyError(request, "opendir", inode, directory.error());
  info->fh = reinterpret_cast<std::uint64_t>(directory->get());
  {
    MutexLock lock(server.mutex_);
    server.directories_.insert(directory->release());
  }
  if (fuse_reply_open(request, info) != 0) server.Drop(reinterpret_cast<vfs::Directory*>(info->fh));
}

void FuseServer::ReleaseDirectory(fuse_req_t request, fuse_ino_t, fuse_file_info* info) {
  Of(request).Drop(reinterpret_cast<vfs::Directory*>(info->fh));
  fuse_reply_err(request, 0);
}

void FuseServer::Drop(vfs::Directory* directory) {
  MutexLock lock(mutex_);
  directories_.erase(directory);
  lock.Unlock();
  delete directory;
}

void FuseServer::ReadDirectory(fuse_req_t request, fuse_ino_t inode, std::size_t size, off_t offset,
                               fuse_file_info* info) {
  Of(request).FillDirectory(request, inode, size, offset, info, false);
}

void FuseServer::ReadDirectoryPlus(fuse_req_t request, fuse_ino_t inode, std::size_t size, off_t offset,
                                   fuse_file_info* info) {
  Of(request).FillDirectory(request, inode, size, offset, info, true);
}

void FuseServer::FillDirectory(fuse_req_t request, fuse_ino_t inode, std::size_t size, off_t offset,
                               fuse_file_info* info, bool plus) {
  constexpr std::uint64_t kDots = 2;  // offsets 1 and 2 follow "." and ".."; above them are the tree's cookies
  std::vector<char> buffer(size);
  std::size_t used = 0;
  auto add = [&](const char* name, const fuse_entry_param& param, std::uint64_t next) {
    const std::size_t room = size - used;
    const auto at = static_cast<off_t>(next);
    const std::size_t needed = plus ? fuse_add_direntry_plus(request, buffer.data() + used, room, name, &param, at)
                                    : fuse_add_direntry(request, buffer.data() + used, room, name, &param.attr, at);
    if (needed > room) return false;
    used += needed;
    return true;
  };
  auto at = static_cast<std::uint64_t>(offset);
  for (; at < kDots; ++at) {
    fuse_entry_param dot{};
    dot.attr.st_ino = inode;
    dot.attr.st_mode = S_IFDIR;
    add(at == 0 ? "." : "..", dot, at + 1);
  }
  const std::size_t dots = used;
  auto visit = [&](const vfs::DirectoryEntry& entry) {
    fuse_entry_param param = ToEntry(entry.entry);
    if (!plus) {
      param.attr.st_mode = TypeOf(entry.kind);
      // readdir must show an inode number, and names without a lookup have none.
      if (param.attr.st_ino == 0) param.attr.st_ino = Mix64(std::hash<std::string_view>()(entry.name)) | 1;
    }
    return add(std::string(entry.name).c_str(), param, entry.next_cookie + kDots);
  };
  auto& directory = *reinterpret_cast<vfs::Directory*>(info->fh);
  Status read = [&] {
    Interruptible wait(request);
    return plus ? directory.ReadPlus(at - kDots, visit, wait.call()) : directory.Read(at - kDots, visit, wait.call());
  }();
  if (!read && used == dots) return ReplyError(request, "readdir", inode, read.error());
  fuse_reply_buf(request, buffer.data(), used);
}

// --- The rest ---

void FuseServer::StatFs(fuse_req_t request, fuse_ino_t) {
  // A bucket has no size. 1 EiB, so that programs which check for free space find enough.
  constexpr std::uint64_t kBlock = 4096, kBlocks = (1ULL << 60) / kBlock;
  struct statvfs info{};
  info.f_bsize = info.f_frsize = kBlock;
  info.f_blocks = info.f_bfree = info.f_bavail = kBlocks;
  info.f_files = info.f_ffree = info.f_favail = 1ULL << 40;
  info.f_namemax = 255;
  fuse_reply_statfs(request, &info);
}

void FuseServer::Control(fuse_req_t request, fuse_ino_t inode, unsigned command, void*, fuse_file_info*, unsigned,
                         const void* in, std::size_t in_size, std::size_t out_size) {
  if (command == static_cast<unsigned>(object::kWillOpenRequest)) {
    return Of(request).WillOpen(request, inode, {static_cast<const std::byte*>(in), in_size});
  }
  if (command == static_cast<unsigned>(object::kMountLocationRequest)) return Of(request).Locate(request, inode);
  if (inode == vfs::kRootInode && command == static_cast<unsigned>(kDaemonStatsRequest)) {
    const std::string stats = DumpJson(Of(request).options.stats->Snapshot());
    if (stats.size() > out_size) return void(fuse_reply_err(request, EOVERFLOW));
    return void(fuse_reply_ioctl(request, static_cast<int>(stats.size()), stats.data(), stats.size()));
  }
  if (inode != vfs::kRootInode || command != static_cast<unsigned>(kDaemonStatusRequest) ||
      out_size < sizeof(DaemonStatus)) {
    return void(fuse_reply_err(request, ENOTTY));
  }
  const vfs::PendingWrites pending = Of(request).tree.pending();
  DaemonStatus status{.magic = kDaemonStatusMagic,
                      .pid = ::getpid(),
                      .files_being_written = pending.files,
                      .bytes_being_written = pending.bytes};
  fuse_reply_ioctl(request, 0, &status, sizeof status);
}

void FuseServer::Locate(fuse_req_t request, fuse_ino_t directory) {
  auto prefix = tree.PrefixOf(directory);
  if (!prefix) return ReplyError(request, "locate", directory, prefix.error());
  const std::string text = object::LocationText(options.store, *prefix);
  auto answer = std::make_unique<object::MountLocation>();
  if (text.size() > sizeof answer->text) return void(fuse_reply_err(request, EOVERFLOW));
  answer->magic = object::MountLocation::kMagic;
  answer->bytes = static_cast<std::uint32_t>(text.size());
  std::ranges::copy(text, answer->text);
  fuse_reply_ioctl(request, 0, answer.get(), sizeof *answer);
}

void FuseServer::WillOpen(fuse_req_t request, fuse_ino_t directory, ByteSpan argument) {
  auto names = ParseWillOpen(argument);
  if (!names) return ReplyError(request, "hint", directory, names.error());
  auto taken = tree.WillOpen(directory, *std::move(names));
  if (!taken) return ReplyError(request, "hint", directory, taken.error());
  object::WillOpenRequest answer{.taken = static_cast<std::uint32_t>(*taken)};
  fuse_reply_ioctl(request, 0, &answer, sizeof answer);
}

}  // namespace

Result<std::unique_ptr<FuseMount>> FuseMount::Create(vfs::Tree& tree, FuseOptions options) {
  auto server = std::make_unique<FuseServer>(tree, std::move(options));
  MR_TRY(server->Mount());
  return server;
}

}  // namespace millrace::mount
