// Open files: reads with readahead, writes through the inode's Writer.
#include "millrace/vfs/core.h"
#include "millrace/vfs/reader.h"

namespace millrace::vfs {
namespace {

class OpenedFile final : public File {
 public:
  OpenedFile(std::shared_ptr<Core> core, InodePtr inode)
      : core_(std::move(core)), inode_(std::move(inode)), reader_(*core_) {}
  ~OpenedFile() override {
    if (writer_) {
      if (writer_->unpublished()) writer_->Abandon();
      core_->EndWriter(*inode_, *writer_);
    }
  }

  InodeId inode() const override { return inode_->id; }
  bool may_keep_pages() const override { return may_keep_pages_; }
  bool found_change() const override { return found_change_; }

  Result<cache::View> ReadView(std::uint64_t offset, MutableByteSpan room, object::Call call) override {
    cache::ObjectVersion version = MR_TRY(ReadableVersion());
    return reader_.Read(version, offset, room, call);
  }

  Status Write(std::uint64_t offset, ByteSpan bytes, object::Call call) override {
    auto writer = MR_TRY(EnsureWriter());
    return writer->Write(offset, bytes, call);
  }
  Status Truncate(std::uint64_t size) {
    auto writer = MR_TRY(EnsureWriter());
    return writer->Truncate(size);
  }

  Status Sync(object::Call call) override {
    auto writer = OwnWriter();
    return writer ? core_->Publish(*inode_, *writer, call) : Status();
  }
  Status Flush(object::Call call) override {
    auto writer = OwnWriter();
    return writer && writer->has_written() ? core_->Publish(*inode_, *writer, call) : Status();
  }
  Status Close(object::Call call) override {
    auto writer = OwnWriter();
    if (!writer) return {};
    Status published = core_->Publish(*inode_, *writer, call);
    if (!published) writer->Abandon();
    core_->EndWriter(*inode_, *writer);
    MutexLock lock(mutex_);
    writer_ = nullptr;
    return published;
  }

 private:
  friend Result<std::unique_ptr<File>> millrace::vfs::OpenStored(std::shared_ptr<Core>, InodePtr, OpenFlags,
                                                                 const object::Call&);
  friend std::unique_ptr<File> millrace::vfs::OpenWriting(std::shared_ptr<Core>, InodePtr, std::shared_ptr<Writer>);

  std::shared_ptr<Writer> OwnWriter() const MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return writer_;
  }

  /// The version this handle reads, if it still is the inode's.
  Result<cache::ObjectVersion> ReadableVersion() MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (writer_) {
      if (writer_->unpublished()) {
        return Fail(Code::kUnsupported, "what was written to {} can be read back after fsync or close", version_.key);
      }
      return writer_->stored().value_or(version_);
    }
    MutexLock inode_lock(inode_->mutex);
    if (inode_->content != content_) {
      return Fail(Code::kStale, "{} was replaced after it was opened; open it again", version_.key);
    }
    if (inode_->moves != moves_) {  // the same bytes are another object, or version, now
      version_ = {MR_TRY(core_->table.PathOf(*inode_)), inode_->told.etag, inode_->told.size};
      moves_ = inode_->moves;
    }
    return version_;
  }

  /// Handles opened for reading and writing become the inode's writer with their first write.
  Result<std::shared_ptr<Writer>> EnsureWriter() MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (!writable_) return Fail(Code::kPermissionDenied, "{} is open for reading only", version_.key);
    if (!writer_) {
      std::string key = MR_TRY(core_->table.PathOf(*inode_));
      writer_ = MR_TRY(core_->StartWriter(*inode_, {.key = std::move(key), .base = version_}));
    }
    return writer_;
  }

  const std::shared_ptr<Core> core_;
  const InodePtr inode_;
  Reader reader_;
  bool writable_ = false, may_keep_pages_ = false, found_change_ = false;  ///< constant once open

  mutable Mutex mutex_;
  cache::ObjectVersion version_ MR_GUARDED_BY(mutex_);
  std::uint64_t content_ MR_GUARDED_BY(mutex_) = 0, moves_ MR_GUARDED_BY(mutex_) = 0;  ///< as Inode counts them
  std::shared_ptr<Writer> writer_ MR_GUARDED_BY(mutex_);
};

/// The version to open: known to be current when opens must be. A small file's own bytes are the proof, and the first
/// read then finds them here; one that was read ahead was proved then.
Result<Metadata> CurrentVersion(Core& core, Inode& inode, OpenFlags flags, const object::Call& call) {
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

Result<std::size_t> File::Read(std::uint64_t offset, MutableByteSpan into, object::Call call) {
  cache::View view = MR_TRY(ReadView(offset, into, std::move(call)));
  return view.CopyTo(into);
}

Status TruncateThrough(File& file, std::uint64_t size) { return static_cast<OpenedFile&>(file).Truncate(size); }

std::unique_ptr<File> OpenWriting(std::shared_ptr<Core> core, InodePtr inode, std::shared_ptr<Writer> writer) {
  auto file = std::make_unique<OpenedFile>(std::move(core), std::move(inode));
  file->writable_ = true;
  MutexLock lock(file->mutex_);
  file->writer_ = std::move(writer);
  return file;
}

Result<std::unique_ptr<File>> OpenStored(std::shared_ptr<Core> core, InodePtr inode, OpenFlags flags,
                                         const object::Call& call) {
  if (auto writer = core->WriterOf(*inode); writer && writer->unpublished()) {
    return Fail(Code::kBusy, "{} is being written; it can be opened once that is published",
                core->table.PathOf(*inode).value_or("the file"));
  }
  Metadata state = MR_TRY(CurrentVersion(*core, *inode, flags, call));
  std::string path = MR_TRY(core->table.PathOf(*inode));
  auto file = std::make_unique<OpenedFile>(core, inode);
  file->writable_ = flags.write;
  MutexLock file_lock(file->mutex_);
  file->version_ = {std::move(path), state.etag, state.size};
  MutexLock lock(inode->mutex);
  file->found_change_ = inode->told.etag != state.etag;
  file->may_keep_pages_ = inode->pages_etag == state.etag;
  inode->Learn(state);
  file->content_ = inode->content;
  file->moves_ = inode->moves;
  inode->pages_etag = state.etag;
  return file;
}

}  // namespace millrace::vfs
