// A multipart upload under way: which parts are queued, on their way, or in the store.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/result.h"
#include "millrace/object/store.h"
#include "millrace/vfs/staging/interval_set.h"
#include "millrace/vfs/write/file_content.h"
#include "millrace/vfs/write/part_layout.h"

namespace millrace::vfs {

/// A part of an upload. A run of unchanged parts is one copy, under the number of its first part.
struct UploadPart {
  enum class State : std::uint8_t { kQueued, kSending, kSent };
  Interval range;
  bool copied = false;  ///< the store copies it from the base
  State state = State::kQueued;
  bool is_dirty = false;  ///< its bytes changed after they were taken: it has to be sent again
  object::PartInfo info;  ///< once sent
};

/// The parts of one Writer, and the multipart upload that they belong to. Parts that the writing has passed are queued
/// while the file is written. A part that changes later is sent again under its number.
///
/// A state machine without threads. Not thread-safe: it belongs to a Writer, whose mutex guards it. The Writer does the
/// requests and reports how they ended.
class PartUpload {
 public:
  /// The upload in the store that parts go to.
  struct Session {
    std::string id;    ///< empty until the store has confirmed the beginning
    std::string key;   ///< empty: no upload was begun
    WallTime begun{};  ///< when it was begun, or a moment before
  };

  PartUpload(const PartLayout& layout, std::uint64_t max_part_bytes, int parallel)
      : layout_(layout), max_part_bytes_(max_part_bytes), parallel_(parallel) {}

  // --- Which parts to send ---

  /// Queues the parts that a change of [begin, end) has filled, if something follows them: a file of one part is one
  /// request. Queues nothing after a failure.
  void QueuePassed(const FileContent& content, std::uint64_t begin, std::uint64_t end);
  /// Queues the parts that the upload lacks for the whole content. Returns false if it lacks nothing, and nothing is on
  /// its way.
  bool QueueMissing(const FileContent& content);
  /// Returns the next part to send, if fewer than `parallel` are on their way. The caller calls OnSent when the part is
  /// done.
  std::optional<int> TakeQueued();
  void ClearQueue();
  /// The bytes from `begin` to `end` have changed. Parts that hold such bytes have to be sent again, except parts whose
  /// bytes have not been taken yet. With `end` = IntervalSet::kEnd the file was cut at `begin`.
  void OnChanged(std::uint64_t begin, std::uint64_t end);

  // --- Parts on their way ---

  /// REQUIRES: the part was taken and is not done. Its reference stays valid until OnSent.
  UploadPart& part(int number) { return parts_.at(number); }
  /// The stop token of the parts on their way.
  std::stop_token stop() const { return stop_.get_token(); }
  /// A part is done. `key` names the file in errors. Returns the range that the store has now; nothing if the part
  /// failed, has to be sent again, or was copied.
  std::optional<Interval> OnSent(int number, Result<object::PartInfo> sent, const std::string& key);
  int in_flight() const { return in_flight_; }
  bool idle() const { return in_flight_ == 0 && queue_.empty(); }
  /// Counts the parts that are done.
  std::uint64_t parts_done() const { return parts_done_; }
  /// The first failure of a part. After a failure nothing is queued before the next attempt to publish.
  const std::optional<Error>& failure() const { return failure_; }
  void ForgetFailure() { failure_.reset(); }
  /// The ranges of all parts that were sent and not copied.
  std::vector<Interval> SentRanges() const;
  /// The parts for the completion of the upload. REQUIRES: QueueMissing() has returned false.
  std::vector<object::PartInfo> Infos() const;

  // --- The upload ---

  const Session& session() const { return session_; }
  /// True when there is something to abort, or to wait for.
  bool active() const { return !session_.id.empty() || in_flight_ > 0; }
  /// An upload of `key` is about to be begun.
  void BeginSession(std::string key, WallTime now);
  void SetId(std::string id) { session_.id = std::move(id); }
  /// Empties the queue and asks the parts on their way to end.
  void Cancel();
  /// Forgets all parts and the failure. Returns the upload, which the caller aborts. REQUIRES: idle().
  Session Reset();
  /// The upload is completed, or the content was published without it: forgets the parts and the upload.
  void Finish();

 private:
  using Parts = std::map<int, UploadPart>;
  Parts::iterator FirstPart(std::uint64_t from);
  void Queue(int number, Interval range, bool copied);

  // Constant after construction.
  const PartLayout layout_;
  const std::uint64_t max_part_bytes_;
  const int parallel_;

  Session session_;
  Parts parts_;
  std::deque<int> queue_;
  int in_flight_ = 0;
  std::uint64_t parts_done_ = 0;
  std::optional<Error> failure_;
  std::stop_source stop_;
};

}  // namespace millrace::vfs
