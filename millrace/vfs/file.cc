// Open files: reads with readahead, writes through the inode's Writer.
#include "millrace/vfs/file.h"

#include <algorithm>
#include <cstdint>

#include "millrace/base/threads/sync.h"
#include "millrace/vfs/core/tree_core.h"
#include "millrace/vfs/read/readahead.h"

namespace millrace::vfs {
namespace {

/// Returns the version to open. If opens must revalidate, it is proved to be current: for a small file by fetching its
/// bytes, which the first read then finds in the cache; for a file that was read ahead, by that fetch.
Result<Metadata> CurrentVersion(TreeCore& core, Inode& inode, OpenFlags flags, const object::Call& call) {
  const TimePoint began = core.clock.Now();
  const bool only_reads = flags.read && !flags.write;
  auto path = core.table.PathOf(inode);
  if (only_reads && path) {
    auto confirmed = core.ahead.Confirm(*path, call);
    core.ahead.OnOpen(*path);
    if (confirmed && core.options.revalidate_open && !core.WriterOf(inode)) {
      MR_TRY(core.attributes.Complete(*path, *confirmed, call));
      return *std::move(confirmed);
    }
  }
  Metadata state = MR_TRY(core.FileState(inode, false, call));
  if (!core.options.revalidate_open || state.as_of > began || core.WriterOf(inode)) return state;
  const std::uint64_t small = ReadaheadWindow::Options().initial;
  if (flags.read && path && state.size > 0 && state.size <= small) {
    auto fetched = core.cache.Fetch({*path, state.etag, state.size}, 0, state.size, call);
    if (fetched && fetched->now) {
      state.as_of = began;
      core.metadata.Put(*path, state);
      return state;
    }
    if (!fetched && fetched.error().code() != Code::kStale) return Fail(fetched.error());
  }
  return core.FileState(inode, true, call);
}

}  // namespace

/// Reads the stored versions of one open file, and prefetches what it is likely to read next. Thread-safe. `core` must
/// outlive it.
class File::Reader {
 public:
  explicit Reader(TreeCore& core);
  ~Reader();
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  /// Returns up to room.size() bytes of `version` from `offset`; no bytes at its end. Blocks. Errors: kStale if the
  /// object was replaced.
  Result<cache::View> Read(const cache::ObjectVersion& version, std::uint64_t offset, MutableByteSpan room,
                           const object::Call& call) MR_EXCLUDES(mutex_);

 private:
  std::uint64_t Bound() const;
  void Count(bool sequential);

  TreeCore& core_;
  Mutex mutex_;
  ReadaheadWindow window_ MR_GUARDED_BY(mutex_);
  bool counted_ = false;  ///< guarded by mutex_ until destruction
};

File::Reader::Reader(TreeCore& core) : core_(core), window_({.part = core.options.read_part_bytes}) {}

File::Reader::~Reader() { Count(false); }

Result<cache::View> File::Reader::Read(const cache::ObjectVersion& version, std::uint64_t offset, MutableByteSpan room,
                                       const object::Call& call) {
  if (offset >= version.size || room.empty()) return cache::View{};
  ReadaheadWindow::Plan plan;
  {
    MutexLock lock(mutex_);
    plan = window_.OnRead(offset, std::min<std::uint64_t>(room.size(), version.size - offset), Bound());
    Count(window_.sequential());
    if (plan.prefetch_length > 0) {
      const std::uint64_t wanted =
          std::min(plan.prefetch_length, version.size - std::min(version.size, plan.prefetch_from));
      const std::uint64_t accepted = core_.cache.Prefetch(version, plan.prefetch_from, wanted).bytes;
      window_.OnPrefetched(plan, accepted == wanted ? plan.prefetch_length : accepted);
    }
  }
  using Mode = cache::BlockCache::Mode;
  return core_.cache.ReadView(version, offset, room, plan.exact ? Mode::kExact : Mode::kBlocks, call);
}

/// Returns the largest window. All sequential readers share half of the cache's memory.
std::uint64_t File::Reader::Bound() const {
  const auto readers = static_cast<std::uint64_t>(std::max(1, core_.sequential_readers.load()));
  return std::min(core_.options.max_readahead, core_.cache.capacity() / 2 / readers);
}

void File::Reader::Count(bool sequential) {
  if (sequential != counted_) core_.sequential_readers += sequential ? 1 : -1;
  counted_ = sequential;
}

File::File(std::shared_ptr<TreeCore> core, InodePtr inode)
    : core_(std::move(core)), inode_(std::move(inode)), reader_(std::make_unique<Reader>(*core_)) {
  MutexLock lock(inode_->mutex);
  ++inode_->open_files;
}
File::~File() {
  (void)Leave(/*publish=*/false, {});
  std::shared_ptr<Writer> ended;
  MutexLock lock(inode_->mutex);
  if (--inode_->open_files == 0 && inode_->writing_files == 0 && !core_->table.IsLinked(*inode_)) {
    ended = std::move(inode_->writer);  // no open file can read it any more
  }
}

InodeId File::inode() const { return inode_->id; }

Result<cache::View> File::ReadView(std::uint64_t offset, MutableByteSpan room, object::Call call) {
  if (auto writer = core_->WriterOf(*inode_)) {
    MR_TRY(CheckContent());
    auto read_stored = [&](const cache::ObjectVersion& version, std::uint64_t at,
                           MutableByteSpan bytes) -> Result<std::size_t> {
      return MR_TRY(reader_->Read(version, at, bytes, call)).CopyTo(bytes);
    };
    const std::size_t read = MR_TRY(writer->Read(offset, room, read_stored, call));
    return cache::View{{{.bytes = room.first(read), .owner = nullptr}}};
  }
  cache::ObjectVersion version = MR_TRY(ReadableVersion());
  return reader_->Read(version, offset, room, call);
}

Status File::Write(std::uint64_t offset, ByteSpan bytes, object::Call call) {
  auto writer = MR_TRY(EnsureWriter(call));
  has_written_ = true;
  return writer->Write(offset, bytes, call);
}
Status File::Truncate(std::uint64_t size, object::Call call) {
  auto writer = MR_TRY(EnsureWriter(call));
  return writer->Truncate(size, call);
}
Status File::Zero(std::uint64_t offset, std::uint64_t length, object::Call call) {
  auto writer = MR_TRY(EnsureWriter(call));
  has_written_ = true;
  return writer->Zero(offset, length, call);
}

Status File::Sync(object::Call call) {
  auto writer = core_->WriterOf(*inode_);
  return writer ? core_->write_back.Publish(inode_, writer, call) : Status();
}
Status File::Flush(object::Call call) {
  if (!has_written_.exchange(false)) return {};
  auto writer = core_->WriterOf(*inode_);
  Status closed = writer ? core_->write_back.Close(inode_, writer, call) : Status();
  if (!closed) has_written_ = true;
  return closed;
}
Status File::Close(object::Call call) { return Leave(/*publish=*/true, call); }

Status File::CheckContent() const {
  MutexLock lock(inode_->mutex);
  if (inode_->content == content_) return {};
  return Fail(Code::kStale, "the file was replaced after it was opened; open it again");
}

/// Returns the version that this file reads: the one it opened, or the newest that this tree has made of it since.
Result<cache::ObjectVersion> File::ReadableVersion() {
  MutexLock lock(mutex_);
  MR_TRY(CheckContent());
  auto path = core_->table.PathOf(*inode_);
  if (!path) return version_;  // unlinked: only bytes in the cache can be read
  MutexLock inode_lock(inode_->mutex);
  if (inode_->moves != moves_) {  // this tree has published, renamed or changed the file since
    version_ = {*std::move(path), inode_->reported.etag, inode_->reported.size};
    moves_ = inode_->moves;
  }
  return version_;
}

/// Joins the inode's writer, at the first change.
Result<std::shared_ptr<Writer>> File::EnsureWriter(const object::Call& call) {
  {
    MutexLock lock(mutex_);
    if (!writable_) return Fail(Code::kPermissionDenied, "{} is open for reading only", version_.key);
    if (writer_) return writer_;
  }
  PathLock::SharedLock shared =
      MR_TRY(core_->LockShared(*inode_, call));  // the key must not change while a writer is made
  MutexLock lock(mutex_);
  if (!writer_) writer_ = MR_TRY(core_->write_back.JoinWriter(inode_, content_));
  return writer_;
}

Status File::Leave(bool publish, const object::Call& call) {
  MutexLock lock(mutex_);
  auto writer = std::exchange(writer_, nullptr);
  lock.Unlock();
  return writer ? core_->write_back.LeaveWriter(inode_, writer, publish, call) : Status();
}

Result<std::size_t> File::Read(std::uint64_t offset, MutableByteSpan into, object::Call call) {
  cache::View view = MR_TRY(ReadView(offset, into, std::move(call)));
  return view.CopyTo(into);
}

std::unique_ptr<File> File::OpenWriting(std::shared_ptr<TreeCore> core, InodePtr inode,
                                        std::shared_ptr<Writer> writer) {
  auto file = std::unique_ptr<File>(new File(std::move(core), inode));
  file->writable_ = true;
  MutexLock file_lock(file->mutex_);
  file->writer_ = std::move(writer);
  MutexLock lock(inode->mutex);
  file->content_ = inode->content;
  return file;
}

void File::Describe(SavedFile& saved) const {
  MutexLock lock(mutex_);
  saved.inode = inode_->id;
  saved.writes = writable_;
  saved.etag = version_.etag;
  saved.size = version_.size;
}

std::unique_ptr<File> File::Restore(std::shared_ptr<TreeCore> core, InodePtr inode, const SavedFile& saved,
                                    bool stale) {
  auto path = core->table.PathOf(*inode);
  auto file = std::unique_ptr<File>(new File(core, inode));
  file->writable_ = saved.writes;
  file->has_written_ = saved.writes;  // perhaps: a Flush publishes what is not published
  MutexLock file_lock(file->mutex_);
  if (saved.writes && !stale) file->writer_ = core->write_back.JoinRestored(inode);
  file->version_ = {path ? *std::move(path) : "", saved.etag, saved.size};
  MutexLock lock(inode->mutex);
  if (!stale && !inode->writer) {
    file->version_.etag = inode->reported.etag;
    file->version_.size = inode->reported.size;
  }
  file->content_ = stale ? inode->content - 1 : inode->content;
  file->moves_ = inode->moves;
  return file;
}

Result<std::unique_ptr<File>> File::OpenStored(std::shared_ptr<TreeCore> core, InodePtr inode, OpenFlags flags,
                                               const object::Call& call) {
  Metadata state = MR_TRY(CurrentVersion(*core, *inode, flags, call));
  std::string path = MR_TRY(core->table.PathOf(*inode));
  auto file = std::unique_ptr<File>(new File(core, inode));
  file->writable_ = flags.write;
  MutexLock file_lock(file->mutex_);
  MutexLock lock(inode->mutex);
  file->found_change_ = inode->reported.etag != state.etag;
  file->may_keep_pages_ = inode->pages_etag == state.etag;
  core->UpdateReported(*inode, state);
  file->version_ = {std::move(path), inode->reported.etag, inode->reported.size};
  file->content_ = inode->content;
  file->moves_ = inode->moves;
  inode->pages_etag = inode->reported.etag;
  return file;
}

}  // namespace millrace::vfs
