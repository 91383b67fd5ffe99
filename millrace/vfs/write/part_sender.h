// The way of a Writer's parts to the store while the file is written.
#pragma once

#include <string>

#include "millrace/base/result.h"
#include "millrace/base/threads/sync.h"
#include "millrace/object/store.h"

namespace millrace::vfs {

class Writer;

/// Sends the parts of one Writer, begins their upload before the first one, and aborts it. A part of the Writer, whose
/// state it uses under the Writer's mutex. Callers do not hold that mutex. Thread-safe.
class PartSender {
 public:
  explicit PartSender(Writer& writer) : writer_(writer) {}
  PartSender(const PartSender&) = delete;
  PartSender& operator=(const PartSender&) = delete;

  /// Sends a part that PartUpload::TakeQueued returned. Blocks until its request is under way. The upload and the
  /// Writer learn how the request ends.
  void Send(int number);
  /// Aborts the upload and forgets its parts. Blocks until the requests of parts have ended.
  Status DropUpload(const object::Call& call);

 private:
  Status TrySend(int number);
  void OnSent(int number, Result<object::PartInfo> sent);
  Result<std::string> EnsureUpload(const object::Call& call) MR_EXCLUDES(upload_mutex_);

  Writer& writer_;
  Mutex upload_mutex_;  ///< held while an upload is begun; locked before the Writer's mutex
};

}  // namespace millrace::vfs
