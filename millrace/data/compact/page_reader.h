// Reads and judges the records of many objects on several threads, and hands them out in their order.
#pragma once

#include <cstdint>
#include <functional>
#include <latch>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"
#include "millrace/base/threads/channel.h"
#include "millrace/base/threads/sync.h"
#include "millrace/base/threads/task_scope.h"
#include "millrace/data/compact/record_judge.h"
#include "millrace/data/records/data_object.h"

namespace millrace::data {

/// The content of a frame: some consecutive records of an object.
struct RecordPage {
  std::uint32_t object = 0;      ///< index into the objects
  std::uint64_t object_end = 0;  ///< offset in the object up to which it is read
  Buffer lines;
  JudgedPage judged;
  std::latch is_judged{1};
};

/// Eight threads read objects ahead, and `threads` threads judge their pages. Thus small objects do not wait for one
/// another. Holds at most 17 pages and two for each thread; a page has about 4 MiB, or one long record. One thread
/// calls Next(). The objects must outlive it.
class PageReader {
 public:
  /// Each of the threads that judge pages gets a judge of its own from `make_judge`.
  PageReader(std::span<const DataObject> objects, int threads, std::function<RecordJudge()> make_judge,
             object::Call call);
  ~PageReader();

  /// Returns the next page, judged, or null at the end. Blocks. Errors: those of Content::FindFrames; kCancelled if the
  /// call's stop token fires.
  Result<std::shared_ptr<RecordPage>> Next() MR_EXCLUDES(mutex_);

 private:
  /// The pages of an object that are read, but not yet handed out.
  struct ObjectPages {
    std::vector<std::shared_ptr<RecordPage>> pages;
    std::optional<Status> finished;
  };
  void ReadObjects(std::stop_token stop);
  Status ReadObject(std::uint32_t object, const object::Call& call);
  bool HandOver(std::shared_ptr<RecordPage> page, std::stop_token stop) MR_EXCLUDES(mutex_);
  void Finish(std::uint32_t object, Status status) MR_EXCLUDES(mutex_);

  const std::span<const DataObject> objects_;
  const std::size_t read_ahead_;  ///< pages of the object whose pages are handed out; others have one
  const object::Call call_;
  std::atomic<std::uint32_t> next_object_ = 0;
  Mutex mutex_;
  CondVar changed_;
  std::uint32_t current_ MR_GUARDED_BY(mutex_) = 0;
  std::map<std::uint32_t, ObjectPages> ahead_ MR_GUARDED_BY(mutex_);
  Channel<std::shared_ptr<RecordPage>> unjudged_;
  std::stop_source cancel_;
  TaskScope judging_, reading_;
};

}  // namespace millrace::data
