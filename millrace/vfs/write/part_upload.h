// The state of a multipart upload: which parts are queued, in flight, or in the store.
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
  bool is_dirty = false;  ///< its bytes changed after they were read: it is to be sent again
  object::PartInfo info;  ///< set once sent
};

/// The parts of one Writer, and their multipart upload. A part is queued when writes have filled it and go on behind
/// it. A part that changes later is sent again under its number.
///
/// A state machine without threads. Not thread-safe: it belongs to a Writer, whose mutex guards it. The Writer sends
/// the requests and reports their results.
class PartUpload {
 public:
  /// The upload in the store that parts go to.
  struct Session {
    std::string id;    ///< empty until the store has confirmed the beginning
    std::string key;   ///< empty: no upload was begun
    WallTime begun{};  ///< just before the request that begins it
  };

  PartUpload(const PartLayout& layout, std::uint64_t max_part_bytes, int parallel)
      : layout_(layout), max_part_bytes_(max_part_bytes), parallel_(parallel) {}

  // --- Which parts to send ---

  /// Queues the parts that a change of [begin, end) has filled, if bytes follow them: a file of one part is published
  /// by one Put. Queues nothing after a failure.
  void QueuePassed(const FileContent& content, std::uint64_t begin, std::uint64_t end);
  /// Queues the parts of the content that the upload lacks. Returns false if it lacks no part, and no part is in
  /// flight.
  bool QueueMissing(const FileContent& content);
  /// Returns the next part to send, if fewer than `parallel` are in flight. The caller calls OnSent when its request
  /// ends.
  std::optional<int> TakeQueued();
  void ClearQueue();
  /// Call when the bytes from `begin` to `end` have changed. Parts with such bytes are sent again, except queued parts
  /// whose bytes have not been read yet. `end` = IntervalSet::kEnd: the file was truncated at `begin`.
  void OnChanged(std::uint64_t begin, std::uint64_t end);

  // --- Parts in flight ---

  /// REQUIRES: the part is in flight. The reference stays valid until OnSent.
  UploadPart& part(int number) { return parts_.at(number); }
  /// The stop token for the requests of parts.
  std::stop_token stop() const { return stop_.get_token(); }
  /// Call when the request of a part ends. `key` names the file in errors. Returns the range that the upload has now;
  /// nothing if the part failed, is to be sent again, or was copied.
  std::optional<Interval> OnSent(int number, Result<object::PartInfo> sent, const std::string& key);
  int in_flight() const { return in_flight_; }
  bool idle() const { return in_flight_ == 0 && queue_.empty(); }
  /// Returns how many requests of parts have ended.
  std::uint64_t parts_done() const { return parts_done_; }
  /// Returns the first failure of a part. After a failure, nothing is queued before the next attempt to publish.
  const std::optional<Error>& failure() const { return failure_; }
  void ForgetFailure() { failure_.reset(); }
  /// Returns the ranges of all parts that were sent and not copied.
  std::vector<Interval> SentRanges() const;
  /// Returns the parts for the request that completes the upload. REQUIRES: QueueMissing() has returned false.
  std::vector<object::PartInfo> Infos() const;

  // --- The upload ---

  const Session& session() const { return session_; }
  /// True if there is an upload to abort, or a part in flight.
  bool active() const { return !session_.id.empty() || in_flight_ > 0; }
  /// Call before an upload of `key` is begun.
  void BeginSession(std::string key, WallTime now);
  void SetId(std::string id) { session_.id = std::move(id); }
  /// Empties the queue and cancels the parts in flight.
  void Cancel();
  /// Forgets all parts and the failure. Returns the upload, which the caller aborts. REQUIRES: idle().
  Session Reset();
  /// Forgets the parts and the upload. Call when the upload is completed, or the content was published without it.
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
