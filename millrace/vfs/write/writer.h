// One file that is being written: the content and metadata of its next version.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "millrace/base/bytes.h"
#include "millrace/base/threads/memory_budget.h"
#include "millrace/base/threads/sync.h"
#include "millrace/cache/block_cache.h"
#include "millrace/object/store.h"
#include "millrace/object/support/work_queue.h"
#include "millrace/vfs/metadata/metadata.h"
#include "millrace/vfs/staging/session_log.h"
#include "millrace/vfs/staging/staging_area.h"
#include "millrace/vfs/staging/upload_ledger.h"
#include "millrace/vfs/write/base_reader.h"
#include "millrace/vfs/write/file_content.h"
#include "millrace/vfs/write/next_version.h"
#include "millrace/vfs/write/part_layout.h"
#include "millrace/vfs/write/part_sender.h"
#include "millrace/vfs/write/part_upload.h"
#include "millrace/vfs/write/publication.h"

namespace millrace::vfs {

/// The next version of a file. Accepts writes at any offset. Its content can be read at any time. Each publication
/// sends the whole content; the published version then becomes the base of the next one.
///
/// A Writer joins six types under its mutex:
///   - FileContent: the base and the staged bytes over it;
///   - NextVersion: the name and metadata of the next version;
///   - BaseReader: reads what both take from the base;
///   - PartUpload: the parts that are sent while the file is written, and their multipart upload;
///   - PartSender: sends these parts;
///   - Publication: one attempt to publish.
///
/// Filled parts are sent in the background, and sent again if they change later. Nothing appears under the key before
/// Publish. A failed Publish loses nothing: the next attempt sends all that is staged.
///
/// Thread-safe. The mutex is held for local work only, never during a request. The **turn** is a lock of content and
/// base: Publish takes it, and writes wait until it is given back.
class Writer {
 public:
  struct Environment {
    object::Store& store;
    cache::BlockCache& cache;
    MemoryBudget& budget;
    StagingArea& staging;
    object::WorkQueue& uploads;  ///< its threads make parts ready and send them
    const Clock& clock;
    UploadLedger* ledger = nullptr;  ///< gets the uploads whose beginning or end the store did not confirm
    std::uint64_t part_bytes;
    int parallel_parts;
    /// Waits until other files need less of the staging area. Returns false if none will. May be empty.
    std::function<bool(const object::Call&)> await_room = {};
    SessionLog* session = nullptr;  ///< gets each change, if another process may have to go on
    std::uint64_t inode = 0;        ///< for the session
    /// Called before the file grows by this many bytes beyond what the store has; an error refuses the change. May be
    /// empty.
    std::function<Status(std::uint64_t bytes, const object::Call&)> grow = {};
  };
  /// Called after each publication. No lock is held. `published.modified` is the time to report. `written` is the time
  /// of the content's last change, which may be earlier.
  using OnPublished = std::function<void(const Metadata& published, WallTime written)>;
  struct Start {
    std::string key;
    std::optional<cache::ObjectVersion> base;  ///< nothing: the content is empty
    std::uint64_t replaces = 0;                ///< the size of a stored version that is not the base
    bool unpublished = false;                  ///< the file is published even if nothing is written
    bool exclusive = false;                    ///< the key must not exist when it is first published
    /// The user metadata to publish; nothing: the base's.
    std::optional<UserMetadata> metadata;
    OnPublished on_published = {};
  };
  Writer(Environment environment, Start start);
  /// Continues with the content that another writer or process has kept (KeepOnDisk).
  Writer(Environment environment, StagingArea::AdoptedFile left, OnPublished on_published = {});
  /// Continues with the content that another process was changing. `left.file` is null if nothing is staged.
  Writer(Environment environment, const SavedContent& saved, StagingArea::AdoptedFile left, OnPublished on_published);
  /// Drops content that is neither published nor kept. Waits for the parts in flight. Aborts the upload of
  /// content that is not kept.
  ~Writer();

  // These two never block.
  std::uint64_t size() const { return size_; }
  WallTime modified() const { return WallTime(WallTime::duration(modified_)); }
  /// True if the present content is to be published.
  bool unpublished() const MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return unpublished_ && !abandoned_;
  }

  /// Returns the version that this writer published last, or else the base that it began with.
  std::optional<cache::ObjectVersion> stored() const MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return content_.base();
  }
  /// Returns false if the file began without a base and no attempt to publish was made:
  /// then the store has nothing of it.
  bool may_be_stored() const MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return MayBeStored();
  }
  /// True while the unpublished content is the one that KeepOnDisk wrote.
  bool kept() const MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return content_.kept() && unpublished_ && !abandoned_;
  }

  /// These three wait for a Publish under way. Errors: kNoSpace if the staging area is full, or Environment::grow
  /// refuses; then nothing has changed;
  /// kInvalidArgument if the file would be larger than the store allows.
  Status Write(std::uint64_t offset, ByteSpan bytes, const object::Call& call) MR_EXCLUDES(mutex_);
  Status Truncate(std::uint64_t size, const object::Call& call) MR_EXCLUDES(mutex_);
  /// Overwrites a range within the file with zeros.
  Status Zero(std::uint64_t offset, std::uint64_t length, const object::Call& call) MR_EXCLUDES(mutex_);

  /// Reads a stored version.
  using ReadStored =
      std::function<Result<std::size_t>(const cache::ObjectVersion&, std::uint64_t offset, MutableByteSpan into)>;
  Result<std::size_t> Read(std::uint64_t offset, MutableByteSpan into, const ReadStored& read_stored,
                           const object::Call& call) MR_EXCLUDES(mutex_);

  /// Makes the content durable and visible, unless it already is. Blocks on the store. Errors: as
  /// Publication::PublishContent.
  Status Publish(const object::Call& call) MR_EXCLUDES(mutex_);
  /// As Publish, if the content is kept. Does nothing if the content has changed since KeepOnDisk.
  Status PublishKept(const object::Call& call) MR_EXCLUDES(mutex_);
  /// Call before the name is removed. The file is not published any more, but can still be read and written. Waits for
  /// a Publish under way. UndoAbandon undoes this. Discard makes it final and removes the kept content. If the process
  /// dies in between, the next mount publishes the kept content only if the store then has `stored` under the key: an
  /// ETag, or empty for no object.
  void Abandon(std::optional<std::string> stored = {}) MR_EXCLUDES(mutex_);
  bool abandoned() const MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return abandoned_;
  }
  void UndoAbandon() MR_EXCLUDES(mutex_);
  void Discard() MR_EXCLUDES(mutex_);
  /// Writes a record of the unpublished content, which then survives this writer and the process; if `durable`, also
  /// the death of the machine. Later changes do not touch the kept content, until the next KeepOnDisk or Publish.
  /// Returns the path of the staging file, or an empty path if nothing is unpublished. Errors: kNoSpace if some bytes
  /// are only in sent parts; those of the disk.
  Result<std::string> KeepOnDisk(bool durable) MR_EXCLUDES(mutex_);
  /// Aborts the upload of a kept content. The next mount sends all of the content.
  void GiveUpParts(const object::Call& call) MR_EXCLUDES(mutex_);
  /// Call when another client has replaced the file. Forgets the base; the content will be published under the new
  /// `key`.
  Status PublishUnder(std::string key, const object::Call& call) MR_EXCLUDES(mutex_);
  /// Copies the base's bytes of the content into staging, so that the content survives the base.
  Status Detach(const object::Call& call) MR_EXCLUDES(mutex_) { return base_.Detach(call); }
  /// The turn, after a publication. While it exists, the content stays as it was published, and changes wait.
  class PublicationLock {
   public:
    explicit PublicationLock(std::shared_ptr<Writer> writer) : writer_(std::move(writer)) {}
    PublicationLock(PublicationLock&&) = default;
    PublicationLock& operator=(PublicationLock&&) = delete;
    ~PublicationLock();
    /// Call when the stored version has another key or ETag.
    void SetStoredVersion(std::string key, std::string etag);
    /// Call when the stored version has other metadata. The next version gets them.
    void ForgetMetadata();

   private:
    std::shared_ptr<Writer> writer_;
  };
  /// Publishes, as Publish does, and returns the turn.
  static Result<PublicationLock> Hold(std::shared_ptr<Writer> writer, const object::Call& call);
  /// Gives another key to a file that is not in the store. Returns false and changes nothing if the store may have it.
  /// `exclusive`: the new key must not exist. `over_stored`: the store has an object under the new key, which this file
  /// replaces.
  Result<bool> MoveUnstored(std::string key, bool exclusive, bool over_stored, const object::Call& call)
      MR_EXCLUDES(mutex_);
  /// Sets the user metadata of the next version.
  void SetMetadata(UserMetadata metadata) MR_EXCLUDES(mutex_);
  /// For a restored writer: takes the older content that is kept until this one is.
  void SetOlder(std::unique_ptr<StagedFile> older) MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    content_.SetOlder(std::move(older));
  }

 private:
  friend class BaseReader;
  friend class PartSender;
  friend class Publication;
  /// Gives the turn back at the end of a scope.
  class TurnScope;
  /// The obstacle to a change: nothing, bytes that must first be published, or a full staging area.
  enum class Obstacle : std::uint8_t { kNone, kPublication, kFullStaging };
  struct ContentChange {
    Interval range;
    std::function<Status(FileContent&)> apply;
    bool adds_bytes = false;  ///< a write: parts that it has filled are sent
  };

  /// The state that a writer begins with.
  struct Initial {
    FileContent content;
    NextVersion next;
    WallTime modified;
    std::uint64_t counted = 0;  ///< the size up to which Environment::grow knows of the file
    bool unpublished = true, abandoned = false;
    OnPublished on_published;
  };
  static Initial Begin(const Environment& environment, Start start);
  static Initial Adopt(const Environment& environment, StagingArea::AdoptedFile left, OnPublished on_published);
  static Initial Restore(const Environment& environment, const SavedContent& saved, StagingArea::AdoptedFile left,
                         OnPublished on_published);
  Writer(Environment environment, Initial initial);

  // Turns.
  Status Await(const object::Call& call, const std::function<bool()>& ready) MR_REQUIRES(mutex_);
  Status AwaitTurn(const object::Call& call) MR_REQUIRES(mutex_);
  Status TakeTurn(const object::Call& call) MR_EXCLUDES(mutex_);
  void GiveTurnBack() MR_EXCLUDES(mutex_);
  Status PublishAll(const object::Call& call) MR_EXCLUDES(mutex_);

  // Changes.
  Status Change(const ContentChange& change, const object::Call& call) MR_EXCLUDES(mutex_);
  Result<Obstacle> TryChange(const ContentChange& change, Status& full, const object::Call& call) MR_REQUIRES(mutex_);
  Result<Obstacle> TryTruncate(std::uint64_t size, const object::Call& call) MR_REQUIRES(mutex_);
  Result<Obstacle> Unfreeze(bool with_bytes) MR_REQUIRES(mutex_);
  Result<Obstacle> FindUploadOnly(std::uint64_t begin, std::uint64_t end) const MR_REQUIRES(mutex_);
  void OnContentChanged() MR_REQUIRES(mutex_);
  bool FreeStaged() MR_REQUIRES(mutex_);
  void DropUnchanged() MR_REQUIRES(mutex_);
  bool MayDropSent() const MR_REQUIRES(mutex_);
  bool MayBeStored() const MR_REQUIRES(mutex_) { return content_.base() || next_.attempted; }
  Status TooLong() const MR_EXCLUDES(mutex_);
  Status GrowTo(std::uint64_t end, const object::Call& call) MR_EXCLUDES(mutex_);
  std::uint64_t PartEnd(std::uint64_t end) const;

  // Records of what outlives the process.
  StagedRecord RecordNow() const MR_REQUIRES(mutex_);
  Status SaveContent(bool durable) MR_REQUIRES(mutex_);
  Status SaveUpload() MR_REQUIRES(mutex_);
  void LogContent(bool recoverable = true) MR_REQUIRES(mutex_);
  void LogWrite(Interval range) MR_REQUIRES(mutex_);
  void MoveToUpload(Interval range) MR_REQUIRES(mutex_);

  // Parts.
  bool SendMissing() MR_REQUIRES(mutex_);
  void SendQueued() MR_REQUIRES(mutex_);

  // Constant after construction.
  const Environment environment_;
  const std::uint64_t session_content_;  ///< its number in the session's log
  const PartLayout layout_;

  // Copies of the content's size and time, which are read without the mutex.
  std::atomic<std::uint64_t> size_;
  std::atomic<WallTime::rep> modified_;
  std::atomic<std::uint64_t> counted_;  ///< the size up to which Environment::grow knows of the file

  BaseReader base_{*this};
  PartSender sender_{*this};

  // Guarded by mutex_.
  mutable Mutex mutex_;
  CondVar changed_;  ///< the request of a part has ended, or a turn was given back
  FileContent content_ MR_GUARDED_BY(mutex_);
  PartUpload upload_ MR_GUARDED_BY(mutex_);
  NextVersion next_ MR_GUARDED_BY(mutex_);
  bool unpublished_ MR_GUARDED_BY(mutex_);
  bool in_turn_ MR_GUARDED_BY(mutex_) = false;  ///< a thread has the turn: content and base do not change
  std::uint64_t publications_ MR_GUARDED_BY(mutex_) = 0;
  bool abandoned_ MR_GUARDED_BY(mutex_);
  std::optional<std::string> removing_ MR_GUARDED_BY(mutex_);  ///< the argument of Abandon
  OnPublished on_published_ MR_GUARDED_BY(mutex_);
  /// The session's log has this content, as it was before the present change, with the same staging file.
  bool logged_ MR_GUARDED_BY(mutex_) = false;
};

}  // namespace millrace::vfs
