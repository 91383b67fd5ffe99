// One file that is being written: what becomes its next version.
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
#include "millrace/vfs/staging/staging_area.h"
#include "millrace/vfs/staging/upload_ledger.h"
#include "millrace/vfs/write/file_content.h"
#include "millrace/vfs/write/next_version.h"
#include "millrace/vfs/write/part_layout.h"
#include "millrace/vfs/write/part_upload.h"
#include "millrace/vfs/write/publication.h"

namespace millrace::vfs {

/// A file's future version. Takes any write and any size. Its content can be read at any time. It is published as a
/// whole, as often as wanted; each time the published version becomes the base of the next one.
///
/// A Writer joins three types under its mutex:
///   - FileContent: the base and the staged bytes over it;
///   - PartUpload: the parts that are sent while the file is written, and their multipart upload;
///   - Publication: one attempt to publish.
///
/// A part that the writing has passed is sent in the background, and again if it changes later. Nothing appears under
/// the key before Publish. A failed Publish loses nothing: the next attempt sends all that is staged.
///
/// Thread-safe. The mutex is held for local work only, never while the store is asked. Content and base change only
/// when nobody else has the **turn**: Publish takes it, and a write waits until it is given back.
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
    /// Waits until others need less of the staging area. Returns false if that is not to be expected. May be empty.
    std::function<bool(const object::Call&)> await_room = {};
  };
  struct Start {
    std::string key;
    std::optional<cache::ObjectVersion> base;  ///< nothing: the content is empty
    bool unpublished = false;                  ///< there is something to publish before the first write
    bool exclusive = false;                    ///< the key must not exist when it is first published
    /// The user metadata to publish; nothing: the base's.
    std::optional<UserMetadata> metadata;
    /// Called after each publication, without a lock.
    std::function<void(const Metadata&)> on_published = {};
  };
  Writer(Environment environment, Start start);
  /// Goes on with what another writer, or process, left by Keep.
  Writer(Environment environment, StagingArea::AdoptedFile left,
         std::function<void(const Metadata&)> on_published = {});
  /// Gives up what was neither published nor kept.
  ~Writer();

  // These never wait.
  std::uint64_t size() const { return size_; }
  WallTime modified() const { return WallTime(WallTime::duration(modified_)); }
  /// True when the store does not have the present content, and is to get it.
  bool unpublished() const MR_EXCLUDES(mutex_);

  /// Returns the version that the store has under the key because of this writer, or had at the start.
  std::optional<cache::ObjectVersion> stored() const MR_EXCLUDES(mutex_);
  /// Returns false if the store cannot have anything under the key because of this writer.
  bool may_be_stored() const MR_EXCLUDES(mutex_);
  /// True while what is unpublished is as Keep wrote it down.
  bool kept() const MR_EXCLUDES(mutex_);

  /// These three wait for a Publish under way. Errors: kNoSpace when the staging area is full; then nothing has
  /// changed. kInvalidArgument for a size that the store cannot hold.
  Status Write(std::uint64_t offset, ByteSpan bytes, const object::Call& call) MR_EXCLUDES(mutex_);
  Status Truncate(std::uint64_t size, const object::Call& call) MR_EXCLUDES(mutex_);
  /// Overwrites a range within the file with zeros.
  Status Zero(std::uint64_t offset, std::uint64_t length, const object::Call& call) MR_EXCLUDES(mutex_);

  /// Reads a stored version.
  using ReadStored =
      std::function<Result<std::size_t>(const cache::ObjectVersion&, std::uint64_t offset, MutableByteSpan into)>;
  Result<std::size_t> Read(std::uint64_t offset, MutableByteSpan into, const ReadStored& read_stored,
                           const object::Call& call) MR_EXCLUDES(mutex_);

  /// Makes the content durable and visible, unless it already is. Blocks on the store. Errors: as Publication::Run.
  Status Publish(const object::Call& call) MR_EXCLUDES(mutex_);
  /// As Publish, for a content that is as Keep left it. Does nothing to a content that has changed since.
  Status PublishKept(const object::Call& call) MR_EXCLUDES(mutex_);
  /// The file is losing its name: nothing of it is published any more, but it can be read and written on. Waits for a
  /// Publish under way. Revive takes this back. Discard makes it final and removes what was kept. If the process dies
  /// in between, what was kept counts if the store then has `stored` under the key: an ETag, or empty for nothing.
  void Abandon(std::optional<std::string> stored = {}) MR_EXCLUDES(mutex_);
  bool abandoned() const MR_EXCLUDES(mutex_);
  void Revive() MR_EXCLUDES(mutex_);
  void Discard() MR_EXCLUDES(mutex_);
  /// Writes down what is unpublished, so that it outlives this writer and the process; if `durable`, the machine's
  /// death, too. Later changes leave what was written down alone, until the next Keep or Publish. Returns the path of
  /// the staging file, or an empty path if there is nothing to keep.
  Result<std::string> Keep(bool durable) MR_EXCLUDES(mutex_);
  /// Removes the sent parts from the store. What is kept waits for the next mount, which sends all of it.
  void GiveUpParts(const object::Call& call) MR_EXCLUDES(mutex_);
  /// Leaves the base and the name to whoever replaced them. The content will be published under `key`, a new one.
  Status Divert(std::string key, const object::Call& call) MR_EXCLUDES(mutex_);
  /// Brings all of the content into staging, so that it outlives the base.
  Status Detach(const object::Call& call) MR_EXCLUDES(mutex_);
  /// The right to publish. While it lives, the content stays as it was published, and changes wait.
  class Turn {
   public:
    explicit Turn(std::shared_ptr<Writer> writer) : writer_(std::move(writer)) {}
    Turn(Turn&&) = default;
    Turn& operator=(Turn&&) = delete;
    ~Turn();
    /// The stored version is under this key, and has this ETag, from now on.
    void Move(std::string key, std::string etag);
    /// The stored version has other metadata. The next version gets them.
    void ForgetMetadata();

   private:
    std::shared_ptr<Writer> writer_;
  };
  /// Publishes, as Publish does, and returns the turn.
  static Result<Turn> Hold(std::shared_ptr<Writer> writer, const object::Call& call);
  /// Gives another name to a file that the store has nothing of. Returns false and changes nothing if the store may
  /// have something of it. `exclusive`: the new key must not exist. `over_stored`: the store has something there, which
  /// this file replaces.
  Result<bool> MoveUnstored(std::string key, bool exclusive, bool over_stored, const object::Call& call)
      MR_EXCLUDES(mutex_);
  /// Sets the user metadata of the next version.
  void SetMetadata(UserMetadata metadata) MR_EXCLUDES(mutex_);

 private:
  friend class Publication;
  /// Gives the turn back at the end of a scope.
  class TurnScope;
  /// What a change has to wait for.
  enum class Obstacle : std::uint8_t { kNone, kPublication, kFullStaging };
  struct ContentChange {
    Interval range;
    std::function<Status(FileContent&)> apply;
    bool sends_passed_parts = false;  ///< parts that the change has filled are sent
  };

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
  bool MayBeStored() const MR_REQUIRES(mutex_);
  Status TooLong() const MR_EXCLUDES(mutex_);
  std::uint64_t PartEnd(std::uint64_t end) const;

  // Records of what outlives the process.
  StagedRecord RecordNow() const MR_REQUIRES(mutex_);
  Status SaveContent(bool durable) MR_REQUIRES(mutex_);
  Status SaveUpload() MR_REQUIRES(mutex_);

  // Parts: writer_upload.cc.
  bool SendMissing() MR_REQUIRES(mutex_);
  void SendQueued() MR_REQUIRES(mutex_);
  void Send(int number) MR_EXCLUDES(mutex_);
  Status TrySend(int number) MR_EXCLUDES(mutex_);
  void OnSent(int number, Result<object::PartInfo> sent) MR_EXCLUDES(mutex_);
  Status Assemble(Interval range, MutableByteSpan into, std::optional<int> part, const object::Call& call)
      MR_EXCLUDES(mutex_);
  Result<object::PutOptions> NextOptions(const object::Call& call) MR_EXCLUDES(mutex_);
  object::PutOptions TakeOptions() MR_REQUIRES(mutex_);
  Result<std::string> EnsureUpload(const object::Call& call) MR_EXCLUDES(upload_mutex_, mutex_);
  Status DropUpload(const object::Call& call) MR_EXCLUDES(mutex_);

  // Constant after construction.
  const Environment environment_;
  const PartLayout layout_;

  // Copies of what mutex_ guards, for those who must not wait.
  std::atomic<std::uint64_t> size_;
  std::atomic<WallTime::rep> modified_;

  Mutex upload_mutex_;  ///< held while an upload is begun; locked before mutex_

  // Guarded by mutex_.
  mutable Mutex mutex_;
  CondVar changed_;  ///< a part is done, or a turn
  FileContent content_ MR_GUARDED_BY(mutex_);
  PartUpload upload_ MR_GUARDED_BY(mutex_);
  NextVersion next_ MR_GUARDED_BY(mutex_);
  bool unpublished_ MR_GUARDED_BY(mutex_);
  bool in_turn_ MR_GUARDED_BY(mutex_) = false;  ///< somebody has the turn: content and base stay as they are
  std::uint64_t publications_ MR_GUARDED_BY(mutex_) = 0;
  bool abandoned_ MR_GUARDED_BY(mutex_) = false;
  std::optional<std::string> removing_ MR_GUARDED_BY(mutex_);  ///< what Abandon was told
  std::function<void(const Metadata&)> on_published_ MR_GUARDED_BY(mutex_);
};

}  // namespace millrace::vfs
