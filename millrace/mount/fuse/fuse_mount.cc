#include "millrace/mount/fuse/fuse_mount.h"

#include <linux/fs.h>
#include <poll.h>
#include <signal.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "millrace/base/hash/random.h"
#include "millrace/base/threads/sync.h"
#include "millrace/mount/fuse/attributes.h"
#include "millrace/mount/fuse/covered_point.h"
#include "millrace/mount/fuse/hints.h"
#include "millrace/mount/fuse/open_files.h"
#include "millrace/mount/fuse/request.h"
#include "millrace/mount/fuse/resumable_session.h"
#include "millrace/mount/fuse/session_header.h"
#include "millrace/mount/point/control.h"
#include "millrace/mount/point/mount_point.h"
#include "millrace/mount/point/mount_stats.h"
#include "millrace/object/local/mount_hints.h"
#include "millrace/object/local/mount_location.h"

namespace millrace::mount {
namespace {

constexpr auto kLookForEnd = std::chrono::seconds(1);  // the delay after an unmount until waiting reads are cancelled

/// Runs a handler and counts how long it took; every handler has replied when it returns.
template <auto member, MountOperation operation>
struct Counted;

class FuseServer final : public FuseMount, private RequestContext {
 public:
  FuseServer(vfs::Tree& served, FuseOptions how) : RequestContext{served, std::move(how)}, files_(options.session) {}
  ~FuseServer() override;

  Status Mount();
  Status Resume(MountToResume mount);
  Status Serve(std::function<void()> live, std::stop_token stop) override;

 private:
  template <auto member, MountOperation operation>
  friend struct Counted;
  static const fuse_lowlevel_ops kOperations;
  static fuse_lowlevel_ops CountedOperations();
  static FuseServer& Of(fuse_req_t request) { return static_cast<FuseServer&>(RequestContext::Of(request)); }
  FileHandle* FindFile(const fuse_file_info* info) { return files_.FindFile(info->fh); }

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

  void ReplyRemoved(fuse_req_t request, const char* operation, fuse_ino_t parent, const char* name, Status removed);
  void ReplyError(fuse_req_t request, const char* operation, fuse_ino_t inode, const Error& error) const {
    fuse_reply_err(request, LogFailure(options, operation, inode, error));
  }
  void ReplyStatus(fuse_req_t request, const char* operation, fuse_ino_t inode, const Status& status) const {
    status ? void(fuse_reply_err(request, 0)) : ReplyError(request, operation, inode, status.error());
  }
  void ReplyCreatedBefore(fuse_req_t request, fuse_file_info* info, std::uint64_t number);
  void FillDirectory(fuse_req_t request, fuse_ino_t inode, std::size_t size, off_t offset, fuse_file_info* info,
                     bool plus);
  void Keep(std::unique_ptr<vfs::File> file, fuse_req_t request, bool writes, fuse_file_info* info);
  Status NewSession();
  Status BeginKept();
  Status ServeByLibfuse();
  bool IsUnmounted() const;
  void ReplyRepeated(fuse_req_t request, fuse_file_info* info, std::uint64_t number);

  fuse_session* session_ = nullptr;
  bool mounted_ = false;
  CoveredPoint covered_;
  std::function<void()> live_;
  ResumableSession kept_;  ///< in use with options.session
  OpenFiles files_;
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

Status FuseServer::NewSession() {
  std::string source;
  for (char c : options.source) {  // the separator of mount options
    if (c == ',' || c == '\\') source += '\\';
    source += c;
  }
  std::string flags = fmt::format("fsname={},subtype=millrace,default_permissions,max_read={}", source, kMaxRequest);
  if (options.allow_other) flags += ",allow_other";
  if (options.allow_root) flags += ",allow_root";
  if (options.read_only) flags += ",ro";
  std::vector<std::string> words = {"millrace", "-o", flags};
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  fuse_args arguments = FUSE_ARGS_INIT(static_cast<int>(argv.size()), argv.data());
  const fuse_lowlevel_ops operations = CountedOperations();
  session_ = fuse_session_new(&arguments, &operations, sizeof operations, static_cast<RequestContext*>(this));
  fuse_opt_free_args(&arguments);
  if (session_ == nullptr) return Fail(Code::kInternal, "libfuse refuses the mount options {}", flags);
  return {};
}

Status FuseServer::Mount() {
  MR_TRY(NewSession());
  if (fuse_session_mount(session_, options.mount_point.c_str()) != 0) {
    const bool others = options.allow_other || options.allow_root;
    return Fail(Code::kIo, "cannot mount on {}{}", options.mount_point,
                others && ::geteuid() != 0 ? ": --allow-other and --allow-root need user_allow_other in /etc/fuse.conf"
                                           : "; see the message above");
  }
  mounted_ = true;
  covered_ = CoveredPoint(options.mount_point);
  if (options.session == nullptr) return {};
  kept = &kept_;
  return {};
}

Status FuseServer::Resume(MountToResume mount) {
  SessionStart start = MR_TRY(ParseHeader(mount.state->header)).start;
  if (start.request.empty()) return Fail(Code::kCorrupt, "the log of the mount lacks the first request of the kernel");
  MR_TRY(NewSession());
  kept = &kept_;
  MR_TRY(kept->Resume(session_, std::move(start), mount.device.get()));
  mount.device.Release();
  mounted_ = true;
  covered_ = CoveredPoint(options.mount_point);
  files_.Restore(tree, *mount.state);
  tree.EndRestore(*mount.state);
  options.log.Warning("went on with the mount of a process that died",
                      {{"inodes", mount.state->inodes.size()},
                       {"files", mount.state->files.size()},
                       {"directories", mount.state->directories.size()}});
  return {};
}

/// Serves the first request, and makes the session one that another process can go on with.
Status FuseServer::BeginKept() {
  const bool resumed = kept->resumed();
  MR_TRY(kept->ServeInit(session_));
  if (!resumed && !kept->start().can_resend()) {
    options.log.Warning(
        "this kernel cannot send requests again (Linux 6.9 can): open files break if this process dies");
    options.session->Remove();
  } else {
    if (!resumed) options.session->PutHeader(FormatHeader({options.source, options.began, kept->start()}));
    MR_TRY(options.keep(fuse_session_fd(session_)));
  }
  if (resumed) MR_TRY(ResumableSession::RequestResend(session_));
  if (live_) live_();
  return {};
}

bool FuseServer::IsUnmounted() const {
  pollfd device{fuse_session_fd(session_), 0, 0};
  return ::poll(&device, 1, 0) > 0;
}

FuseServer::~FuseServer() {
  if (session_ != nullptr) {
    const bool here = mounted_ && !IsUnmounted() && covered_.IsOurs();
    if (mounted_ && !here) LeaveMountPoint(session_);
    // libfuse does not unmount what another process has mounted.
    if (mounted_) fuse_session_unmount(session_);
    if (here && kept_.resumed()) (void)Detach(options.mount_point, /*lazy=*/true);
    fuse_session_destroy(session_);
  }
}

Status FuseServer::Serve(std::function<void()> live, std::stop_token stop) {
  live_ = std::move(live);
  if (kept != nullptr) MR_TRY(BeginKept());
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
      if (IsUnmounted()) ended.request_stop();
    }
    ended.request_stop();
    if (kept != nullptr) return kept->Stop(session_);
    fuse_session_exit(session_);
    while (!served.stop_requested()) {  // until the serving thread has seen the signal
      pthread_kill(server, SIGUSR1);
      woken.WaitUntil(mutex, std::chrono::steady_clock::now() + std::chrono::milliseconds(10), served,
                      [] { return false; });
    }
  });
  const Status served = kept != nullptr ? kept->Serve(session_, options.max_threads) : ServeByLibfuse();
  stopper.request_stop();
  stopper.join();
  Status flushed = tree.FlushAll({.stop = {}, .deadline = Deadline::After(SystemClock(), options.flush_timeout)});
  if (!flushed) {
    const vfs::PendingWrites left = tree.pending();
    options.log.Error("not all that was written could be published; the next mount goes on with what is staged",
                      {{"files", left.files}, {"bytes", left.bytes}, {"reason", flushed.error()}});
    return flushed;
  }
  return served;
}

Status FuseServer::ServeByLibfuse() {
  fuse_loop_config* config = fuse_loop_cfg_create();
  fuse_loop_cfg_set_clone_fd(config, 1);
  fuse_loop_cfg_set_max_threads(config, static_cast<unsigned>(options.max_threads));
  fuse_loop_cfg_set_idle_threads(config, static_cast<unsigned>(options.max_threads));
  const int result = fuse_session_loop_mt(session_, config);
  fuse_loop_cfg_destroy(config);
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
  if (server.kept == nullptr) {
    if (server.live_) server.live_();
    return;
  }
  if (server.kept->resumed()) connection->want = server.kept->start().want;  // as the kernel knows it
  server.kept->start().want = connection->want;
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
  param.entry_timeout = SecondsOf(server.tree.negative_ttl());  // an inode of 0 is remembered as absent
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
  fuse_reply_attr(request, &info, SecondsOf(entry->valid_for));
}

void FuseServer::SetAttributes(fuse_req_t request, fuse_ino_t inode, struct stat* wanted, int which,
                               fuse_file_info* info) {
  FuseServer& server = Of(request);
  vfs::AttributeChange change = ToChange(*wanted, which);
  if (which & FUSE_SET_ATTR_SIZE) change.size = static_cast<std::uint64_t>(wanted->st_size);
  FileHandle* const through = info != nullptr ? server.FindFile(info) : nullptr;
  auto entry = server.tree.SetAttributes(inode, change, through != nullptr ? through->file.get() : nullptr);
  if (!entry) return server.ReplyError(request, "setattr", inode, entry.error());
  struct stat now = ToStat(entry->attributes);
  fuse_reply_attr(request, &now, SecondsOf(entry->valid_for));
}

void FuseServer::MakeDirectory(fuse_req_t request, fuse_ino_t parent, const char* name, mode_t mode) {
  FuseServer& server = Of(request);
  auto made = server.tree.MakeDirectory(parent, name, OwnershipOf(request, mode));
  if (auto before = FindMade(request, parent, name, made, vfs::NodeKind::kDirectory)) made = *before;
  if (!made) return server.ReplyError(request, "mkdir", parent, made.error());
  fuse_entry_param param = ToEntry(*made);
  if (fuse_reply_entry(request, &param) != 0) server.tree.Forget(param.ino, 1);
}

void FuseServer::Unlink(fuse_req_t request, fuse_ino_t parent, const char* name) {
  FuseServer& server = Of(request);
  server.ReplyRemoved(request, "unlink", parent, name, server.tree.Unlink(parent, name));
}

void FuseServer::RemoveDirectory(fuse_req_t request, fuse_ino_t parent, const char* name) {
  FuseServer& server = Of(request);
  server.ReplyRemoved(request, "rmdir", parent, name, server.tree.RemoveDirectory(parent, name));
}

/// Replies after a name was removed. A name that is gone counts as removed if the request is a repeated one.
void FuseServer::ReplyRemoved(fuse_req_t request, const char* operation, fuse_ino_t parent, const char* name,
                              Status removed) {
  if (!removed && removed.error().code() == Code::kNotFound && RequestOrigin::Current().repeated) {
    tree.DropName(parent, name);
    removed = {};
  }
  ReplyStatus(request, operation, parent, removed);
}

void FuseServer::Rename(fuse_req_t request, fuse_ino_t parent, const char* name, fuse_ino_t new_parent,
                        const char* new_name, unsigned flags) {
  if (flags & ~static_cast<unsigned>(RENAME_NOREPLACE)) return void(fuse_reply_err(request, EINVAL));
  Of(request).ReplyStatus(request, "rename", parent,
                          Of(request).tree.Rename(parent, name, new_parent, new_name,
                                                  {.no_replace = (flags & RENAME_NOREPLACE) != 0,
                                                   .repeated = RequestOrigin::Current().repeated}));
}

// --- Files ---

/// Linux asks for an open with O_TRUNC first, and only then refuses it with ETXTBSY if the file is a program that runs.
/// With O_RDONLY it has no earlier check, as it has for writing. So such an open leaves the file as it is until the
/// close, of which a refused open has none.
bool EmptiesAtClose(int flags) { return (flags & O_ACCMODE) == O_RDONLY && (flags & O_TRUNC) != 0; }

void FuseServer::Keep(std::unique_ptr<vfs::File> file, fuse_req_t request, bool writes, fuse_file_info* info) {
  auto handle = std::make_unique<FileHandle>();
  handle->file = std::move(file);
  handle->emptied_at_close = EmptiesAtClose(info->flags);
  if (writes) handle->opener = ProcessOf(request);
  info->keep_cache = handle->file->may_keep_pages();
  info->noflush = !writes;
  info->fh = files_.AddFile(std::move(handle), (info->flags & O_ACCMODE) != O_WRONLY);
}

void FuseServer::ReplyRepeated(fuse_req_t request, fuse_file_info* info, std::uint64_t number) {
  info->fh = number;
  info->keep_cache = 0;
  info->noflush = (info->flags & O_ACCMODE) == O_RDONLY && !EmptiesAtClose(info->flags);
  if (fuse_reply_open(request, info) != 0) (void)files_.CloseFile(info->fh);
}

void FuseServer::Open(fuse_req_t request, fuse_ino_t inode, fuse_file_info* info) {
  FuseServer& server = Of(request);
  const int access = info->flags & O_ACCMODE;
  const bool empties_at_close = EmptiesAtClose(info->flags), writes = access != O_RDONLY || empties_at_close;
  const bool truncates = (info->flags & O_TRUNC) != 0 && !empties_at_close;
  if (const auto number = server.files_.FindRepeated()) return server.ReplyRepeated(request, info, *number);
  auto file = [&] {
    Interruptible wait(request);
    return server.tree.OpenFile(inode, {.read = access != O_WRONLY, .write = writes, .truncate = truncates},
                                wait.call());
  }();
  if (!file) return server.ReplyError(request, "open", inode, file.error());
  // The kernel has cached the size of the version before.
  if ((*file)->found_change()) fuse_lowlevel_notify_inval_inode(server.session_, inode, -1, 0);
  server.Keep(*std::move(file), request, writes, info);
  if (fuse_reply_open(request, info) != 0) (void)server.files_.CloseFile(info->fh);  // the caller was killed meanwhile
}

void FuseServer::Create(fuse_req_t request, fuse_ino_t parent, const char* name, mode_t mode, fuse_file_info* info) {
  FuseServer& server = Of(request);
  if (const auto number = server.files_.FindRepeated()) return server.ReplyCreatedBefore(request, info, *number);
  auto created = server.tree.Create(parent, name, (info->flags & O_EXCL) != 0, OwnershipOf(request, mode));
  if (created && (info->flags & O_TRUNC)) {
    if (Status cut = created->file->Truncate(0); !cut) created = Fail(cut.error());
  }
  if (!created) return server.ReplyError(request, "create", parent, created.error());
  fuse_entry_param param = ToEntry(created->entry);
  server.Keep(std::move(created->file), request, true, info);
  if (fuse_reply_create(request, &param, info) != 0) {
    (void)server.files_.CloseFile(info->fh);
    server.tree.Forget(param.ino, 1);
  }
}

/// Replies to a repeated request that has made and opened a file for another process.
void FuseServer::ReplyCreatedBefore(fuse_req_t request, fuse_file_info* info, std::uint64_t number) {
  info->fh = number;
  info->keep_cache = info->noflush = 0;
  FileHandle* const handle = FindFile(info);
  auto entry = handle != nullptr ? tree.GetAttributes(handle->file->inode()) : Fail(Code::kStale, "it is closed");
  if (!entry) return ReplyError(request, "create", 0, entry.error());
  fuse_entry_param param = ToEntry(*entry);
  if (fuse_reply_create(request, &param, info) != 0) {
    (void)files_.CloseFile(info->fh);
    tree.Forget(param.ino, 1);
  }
}

void FuseServer::Read(fuse_req_t request, fuse_ino_t inode, std::size_t size, off_t offset, fuse_file_info* info) {
  thread_local Buffer buffer;  // for bytes that the cache does not keep
  if (buffer.size() < size) buffer = Buffer(std::max<std::size_t>(size, kMaxRequest));
  FileHandle* const handle = Of(request).FindFile(info);
  if (handle == nullptr) return void(fuse_reply_err(request, ESTALE));
  auto read = [&] {
    Interruptible wait(request);
    return handle->file->ReadView(static_cast<std::uint64_t>(offset), buffer.span().first(size), wait.call());
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
  FileHandle* const handle = Of(request).FindFile(info);
  if (handle == nullptr) return void(fuse_reply_err(request, ESTALE));
  // Not interruptible: after half a write, the file would have to fail.
  Status written = handle->file->Write(static_cast<std::uint64_t>(offset), AsBytes({bytes, size}));
  if (!written) return Of(request).ReplyError(request, "write", inode, written.error());
  Of(request).options.stats->CountWrite(size);
  fuse_reply_write(request, size);
}

void FuseServer::Allocate(fuse_req_t request, fuse_ino_t inode, int mode, off_t offset, off_t length,
                          fuse_file_info* info) {
  FuseServer& server = Of(request);
  FileHandle* const handle = server.FindFile(info);
  if (handle == nullptr) return void(fuse_reply_err(request, ESTALE));
  vfs::File& file = *handle->file;
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
  FileHandle* const handle = Of(request).FindFile(info);
  if (handle == nullptr) return void(fuse_reply_err(request, ESTALE));
  // Children that inherited the descriptor close it when they end; the file is still being written by their parent.
  const pid_t closer = handle->opener == 0 ? 0 : ProcessOf(request);
  if (closer != 0 && closer != handle->opener) return void(fuse_reply_err(request, 0));
  if (std::exchange(handle->emptied_at_close, false)) {
    if (Status cut = handle->file->Truncate(0); !cut)
      return Of(request).ReplyError(request, "close", inode, cut.error());
  }
  Of(request).ReplyStatus(request, "close", inode, handle->file->Flush());
}

void FuseServer::Sync(fuse_req_t request, fuse_ino_t inode, int, fuse_file_info* info) {
  FileHandle* const handle = Of(request).FindFile(info);
  if (handle == nullptr) return void(fuse_reply_err(request, ESTALE));
  Of(request).ReplyStatus(request, "fsync", inode, handle->file->Sync());
}

void FuseServer::Release(fuse_req_t request, fuse_ino_t inode, fuse_file_info* info) {
  Of(request).ReplyStatus(request, "the last close", inode, Of(request).files_.CloseFile(info->fh));
}

// --- Directories ---

void FuseServer::OpenDirectory(fuse_req_t request, fuse_ino_t inode, fuse_file_info* info) {
  FuseServer& server = Of(request);
  if (const auto number = server.files_.FindRepeated()) {
    info->fh = *number;
    if (fuse_reply_open(request, info) != 0) server.files_.CloseDirectory(info->fh);
    return;
  }
  auto directory = server.tree.OpenDirectory(inode);
  if (!directory) return server.ReplyError(request, "opendir", inode, directory.error());
  info->fh = server.files_.AddDirectory(*std::move(directory));
  if (fuse_reply_open(request, info) != 0) server.files_.CloseDirectory(info->fh);
}

void FuseServer::ReleaseDirectory(fuse_req_t request, fuse_ino_t, fuse_file_info* info) {
  Of(request).files_.CloseDirectory(info->fh);
  fuse_reply_err(request, 0);
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
  vfs::Directory* const opened = files_.FindDirectory(info->fh);
  if (opened == nullptr) return void(fuse_reply_err(request, ESTALE));
  vfs::Directory& directory = *opened;
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
  auto usage = [&] {
    Interruptible wait(request);
    return Of(request).tree.usage(wait.call());
  }();
  // Programs take an error for the mount's death.
  if (!usage) {
    Of(request).options.log.Warning("how full the volume is cannot be told", {{"reason", usage.error()}});
  }
  if (usage && *usage) {
    info.f_blocks = (*usage)->limit / kBlock;
    info.f_bfree = info.f_bavail = ((*usage)->limit - std::min((*usage)->used, (*usage)->limit)) / kBlock;
  }
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

Result<std::unique_ptr<FuseMount>> FuseMount::Resume(vfs::Tree& tree, FuseOptions options, MountToResume mount) {
  auto server = std::make_unique<FuseServer>(tree, std::move(options));
  MR_TRY(server->Resume(std::move(mount)));
  return server;
}

}  // namespace millrace::mount
