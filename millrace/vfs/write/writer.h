// One file being written: a stored version with local changes laid over it.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "millrace/base/bytes.h"
#include "millrace/base/threads/memory_budget.h"
#include "millrace/base/threads/sync.h"
#include "millrace/cache/block_cache.h"
#include "millrace/object/store.h"
#include "millrace/object/support/work_queue.h"
#include "millrace/vfs/metadata/metadata_cache.h"
#include "millrace/vfs/write/interval_set.h"
#include "millrace/vfs/write/part_layout.h"
#include "millrace/vfs/write/staging_area.h"
#include "millrace/vfs/write/upload_ledger.h"

namespace millrace::vfs {

/// A file's future version. Its content is a base (the front of a stored version, or nothing), overlaid by bytes in a
/// staging file; where neither has any, it is zeros. It takes any write and any size, can be read at any time, and is
/// published as a whole, as often as wanted: each time the published version becomes the base of the next.
///
/// Long files leave while they are written: a part that the writing has passed is sent in the background, and again if
/// it changes later. Nothing shows under the key before Publish. A failed Publish loses nothing: the next one tries
/// again with all that is staged.
///
/// Thread-safe. Publish and whatever must wait for it block on the store; a write waits for a Publish under way.
class Writer {
 public:
  struct Environment {
    object::Store& store;
    cache::BlockCache& cache;
    MemoryBudget& budget;
    StagingArea& staging;
    object::WorkQueue& uploads;  ///< where parts are made ready and sent
    const Clock& clock;
    UploadLedger* ledger = nullptr;  ///< of uploads that may have been begun without our knowing
    std::uint64_t part_bytes;
    int parallel_parts;
    /// Waits until others need less of the staging area; false when that is not to be expected. May be empty.
    std::function<bool(const object::Call&)> await_room = {};
  };
  struct Start {
    std::string key;
    std::optional<cache::ObjectVersion> base;  ///< nothing: empty
    bool unpublished = false;                  ///< there is something to publish before the first write
    bool exclusive = false;                    ///< the key must not exist when it is first published
    /// User metadata to publish with; nothing: the base's.
    std::optional<UserMetadata> metadata;
    /// Told of each publication, holding no lock.
    std::function<void(const Metadata&)> on_published = {};
  };
  Writer(Environment environment, Start start);
  /// Goes on with what another writer, or process, left by Keep.
  Writer(Environment environment, StagingArea::Adopted left, std::function<void(const Metadata&)> on_published = {});
  ~Writer();  ///< gives up what was neither published nor kept

  // These never wait.
  std::uint64_t size() const { return size_; }
  WallTime modified() const { return WallTime(WallTime::duration(modified_)); }
  /// True when the store does not have the present content, and is to have it.
  bool unpublished() const MR_EXCLUDES(mutex_);

  /// What the store has under the key because of this writer, or had at the start.
  std::optional<cache::ObjectVersion> stored() const MR_EXCLUDES(mutex_);
  /// False when the store cannot have anything under the key because of this writer.
  bool may_be_stored() const MR_EXCLUDES(mutex_);
  /// True while what is unpublished is as Keep wrote it down.
  bool kept() const MR_EXCLUDES(mutex_);

  /// kNoSpace when the staging area is full; then nothing has changed.
  Status Write(std::uint64_t offset, ByteSpan bytes, const object::Call& call) MR_EXCLUDES(mutex_);
  Status Truncate(std::uint64_t size, const object::Call& call) MR_EXCLUDES(mutex_);
  /// Makes a range within the file zeros.
  Status Zero(std::uint64_t offset, std::uint64_t length, const object::Call& call) MR_EXCLUDES(mutex_);

  /// How to read a stored version.
  using ReadStored =
      std::function<Result<std::size_t>(const cache::ObjectVersion&, std::uint64_t offset, MutableByteSpan into)>;
  Result<std::size_t> Read(std::uint64_t offset, MutableByteSpan into, const ReadStored& read_stored,
                           const object::Call& call) MR_EXCLUDES(mutex_);

  /// Makes the content durable and visible, unless it already is. kAlreadyExists when `exclusive` did not hold, kStale
  /// when somebody replaced the base.
  Status Publish(const object::Call& call) MR_EXCLUDES(mutex_);
  /// The same for content that is as Keep left it; does nothing about one that has changed since.
  Status PublishKept(const object::Call& call) MR_EXCLUDES(mutex_);
  /// The file is losing its name: nothing of it is published any more, but it can be read and written on. Waits for a
  /// Publish under way. Revive takes it back; Discard makes it final: what was kept goes. Should the process die in
  /// between, what was kept counts if the store has `stored` under the key then, an ETag or empty for nothing.
  void Abandon(std::optional<std::string> stored = {}) MR_EXCLUDES(mutex_);
  bool abandoned() const MR_EXCLUDES(mutex_);
  void Revive() MR_EXCLUDES(mutex_);
  void Discard() MR_EXCLUDES(mutex_);
  /// Writes down what is unpublished, so that it outlives this writer and the process; when `durable`, the machine's
  /// death too. Changes that follow leave what was written down alone, until the next Keep or Publish. Gives the
  /// staging file; nothing when there is nothing to keep.
  Result<std::string> Keep(bool durable) MR_EXCLUDES(mutex_);
  /// What is kept waits for the next mount, which sends it anew: the parts that were sent are removed from the store.
  void GiveUpParts(const object::Call& call) MR_EXCLUDES(mutex_);
  /// Leaves the base and the name to whoever replaced them: the content goes to a key of its own.
  Status Divert(std::string key, const object::Call& call) MR_EXCLUDES(mutex_);
  /// Brings all of the content into staging, so that it outlives the base.
  Status Detach(const object::Call& call) MR_EXCLUDES(mutex_);
  /// While it lives, the content stays as it is published, and whoever would change it waits.
  class Turn {
   public:
    explicit Turn(std::shared_ptr<Writer> writer) : writer_(std::move(writer)) {}
    Turn(Turn&&) = default;
    Turn& operator=(Turn&&) = delete;
    ~Turn();
    /// The stored version is under this key, or has this ETag, from now on.
    void Move(std::string key, std::string etag);
    /// Its metadata were changed there: the next version takes them along.
    void ForgetMetadata();

   private:
    std::shared_ptr<Writer> writer_;
  };
  /// Publishes, as Publish does, and lets nothing change until the turn is given back.
  static Result<Turn> Hold(std::shared_ptr<Writer> writer, const object::Call& call);
  /// Gives another name to a file that the store has nothing of. False, changing nothing, when it may have.
  /// `exclusive`: the new key must not exist; `over_stored`: the store has something there, which this file replaces.
  Result<bool> MoveUnstored(std::string key, bool exclusive, bool over_stored, const object::Call& call)
      MR_EXCLUDES(mutex_);
  /// User metadata of the next version.
  void SetMetadata(UserMetadata metadata) MR_EXCLUDES(mutex_);

 private:
  /// A part on its way to the store, or there. A run of unchanged parts is one copy, under the number of its first.
  struct Part {
    enum class State : std::uint8_t { kQueued, kSending, kSent };
    Interval range;
    bool copied = false;  ///< from the base
    State state = State::kQueued;
    bool dirty = false;  ///< changed after its bytes were taken
    object::PartInfo info;
  };

  // What outlives the process.
  StagedRecord RecordNow() const MR_REQUIRES(mutex_);
  Status SaveContent(bool durable) MR_REQUIRES(mutex_);
  Status SaveUpload() MR_REQUIRES(mutex_);
  Status Thaw(bool with_content, const object::Call& call) MR_REQUIRES(mutex_);
  void Unsave() MR_REQUIRES(mutex_);

  // The content.
  Status Change(std::uint64_t begin, std::uint64_t end, const object::Call& call,
                const std::function<Status(StagedFile&)>& change) MR_REQUIRES(mutex_);
  Status MakeRoom(const object::Call& call) MR_REQUIRES(mutex_);
  void DropClean() MR_REQUIRES(mutex_);
  void DropSent(const Part& part) MR_REQUIRES(mutex_);
  Status NeedHere(std::uint64_t begin, std::uint64_t end, const object::Call& call) MR_REQUIRES(mutex_);
  void Touch() MR_REQUIRES(mutex_);
  std::uint64_t PartEnd(std::uint64_t end) const;
  Status Assemble(Interval range, MutableByteSpan into, Part* part, const object::Call& call) MR_EXCLUDES(mutex_);
  std::vector<Interval> ReadHere(std::uint64_t offset, MutableByteSpan into) const MR_REQUIRES(mutex_);
  Status Await(const object::Call& call, const std::function<bool()>& ready) MR_REQUIRES(mutex_);
  Status AwaitTurn(const object::Call& call) MR_REQUIRES(mutex_);

  // Parts.
  void SendPassed(std::uint64_t begin, std::uint64_t end) MR_REQUIRES(mutex_);
  void Enqueue(int number, Interval range, bool copied) MR_REQUIRES(mutex_);
  void Pump() MR_REQUIRES(mutex_);
  void ClearQueue() MR_REQUIRES(mutex_);
  void Send(int number) MR_EXCLUDES(mutex_);
  Status TrySend(int number) MR_EXCLUDES(mutex_);
  void OnSent(int number, Result<object::PartInfo> done) MR_EXCLUDES(mutex_);
  Result<std::string> EnsureUpload(const object::Call& call) MR_EXCLUDES(upload_mutex_, mutex_);
  Status DropUpload(const object::Call& call) MR_REQUIRES(mutex_);
  void Spoil(std::uint64_t begin, std::uint64_t end) MR_REQUIRES(mutex_);
  std::map<int, Part>::iterator FirstPart(std::uint64_t from) MR_REQUIRES(mutex_);
  bool Unchanged(Interval range) const MR_REQUIRES(mutex_);

  // Publishing.
  Status PublishInTurn(const object::Call& call) MR_REQUIRES(mutex_);
  Status PublishAll(const object::Call& call) MR_REQUIRES(mutex_);
  Status PublishOnce(const object::Call& call) MR_REQUIRES(mutex_);
  Result<object::PutOptions> NextOptions(const object::Call& call) MR_EXCLUDES(mutex_);
  void Expect(std::string etag) MR_EXCLUDES(mutex_);
  Result<std::string> PutWhole(object::PutOptions conditions, const object::Call& call) MR_EXCLUDES(mutex_);
  Result<std::string> PutParts(object::PutOptions conditions, const object::Call& call) MR_EXCLUDES(mutex_);
  bool EnqueueMissing() MR_REQUIRES(mutex_);
  std::optional<std::string> FindPublished(const object::Call& call, bool& other_metadata) MR_EXCLUDES(mutex_);

  const Environment environment_;
  const object::Limits limits_;
  const PartLayout layout_;
  std::atomic<std::uint64_t> size_;
  std::atomic<WallTime::rep> modified_;
  std::atomic<bool> unpublished_;

  Mutex upload_mutex_;   ///< held while an upload is begun; before mutex_
  mutable Mutex mutex_;  ///< held for local work only, never while the store is asked
  CondVar news_;         ///< a part is done, or a turn
  std::string key_ MR_GUARDED_BY(mutex_);
  WallTime named_ MR_GUARDED_BY(mutex_);  ///< as StagedRecord::saved
  bool exclusive_ MR_GUARDED_BY(mutex_);
  std::function<void(const Metadata&)> on_published_ MR_GUARDED_BY(mutex_);
  bool abandoned_ MR_GUARDED_BY(mutex_) = false;
  std::optional<std::string> removing_ MR_GUARDED_BY(mutex_);  ///< as Abandon was told
  bool attempted_ MR_GUARDED_BY(mutex_) = false;               ///< a publication may have reached the store
  bool publishing_ MR_GUARDED_BY(mutex_) = false;  ///< somebody has the turn: content and base stay as they are
  std::uint64_t publications_ MR_GUARDED_BY(mutex_) = 0;

  std::optional<cache::ObjectVersion> base_ MR_GUARDED_BY(mutex_);
  std::uint64_t base_bytes_ MR_GUARDED_BY(mutex_) = 0;  ///< of the base that count, where nothing is staged
  std::unique_ptr<StagedFile> staged_ MR_GUARDED_BY(mutex_);
  bool kept_ MR_GUARDED_BY(mutex_) = false;                     ///< the record of staged_ tells the present content
  std::unique_ptr<StagedFile> previous_ MR_GUARDED_BY(mutex_);  ///< what Keep wrote down, where that is older
  IntervalSet changed_ MR_GUARDED_BY(mutex_);                   ///< differs from the base
  IntervalSet sent_only_ MR_GUARDED_BY(mutex_);                 ///< in sent parts and nowhere else: staging was full
  std::string expected_ MR_GUARDED_BY(mutex_);  ///< the ETag of a publication under way that builds on the base
  std::optional<UserMetadata> metadata_ MR_GUARDED_BY(mutex_);
  std::string content_type_ MR_GUARDED_BY(mutex_);
  bool touched_ MR_GUARDED_BY(mutex_) = false;           ///< times of the base do not hold any more
  bool metadata_changed_ MR_GUARDED_BY(mutex_) = false;  ///< since it was last sent

  std::stop_source stop_ MR_GUARDED_BY(mutex_);  ///< of the parts on their way
  std::string upload_id_ MR_GUARDED_BY(mutex_), upload_key_ MR_GUARDED_BY(mutex_);
  WallTime upload_begun_ MR_GUARDED_BY(mutex_);
  std::map<int, Part> parts_ MR_GUARDED_BY(mutex_);
  std::deque<int> queue_ MR_GUARDED_BY(mutex_);
  int in_flight_ MR_GUARDED_BY(mutex_) = 0;  ///< parts handed to `uploads` that are not done
  std::uint64_t parts_done_ MR_GUARDED_BY(mutex_) = 0;
  std::optional<Error> failure_ MR_GUARDED_BY(mutex_);  ///< of a part; until the next Publish nothing is sent ahead
};

}  // namespace millrace::vfs
