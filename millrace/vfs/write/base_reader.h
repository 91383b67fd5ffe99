// Reads of the stored version that a Writer's content builds on.
#pragma once

#include <optional>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"
#include "millrace/object/store.h"
#include "millrace/vfs/staging/interval_set.h"

namespace millrace::vfs {

class Writer;

/// Completes the content and the metadata of one Writer by those of its base. A part of the Writer, whose state it uses
/// under the Writer's mutex. Callers do not hold that mutex. Thread-safe. Calls block on the store.
class BaseReader {
 public:
  explicit BaseReader(Writer& writer) : writer_(writer) {}
  BaseReader(const BaseReader&) = delete;
  BaseReader& operator=(const BaseReader&) = delete;

  /// Copies the bytes of a range, all as of one moment. From then on, changes of the range make `part` dirty.
  /// Errors: kStale if the base became shorter; those of the store.
  Status Assemble(Interval range, MutableByteSpan into, std::optional<int> part, const object::Call& call);
  /// Copies the base's bytes of the content into staging. Errors: as Assemble, and those of the staging area.
  Status Detach(const object::Call& call);
  /// Returns the options of the next version. If its metadata were not set, reads those of the base.
  /// Errors: kStale if the base was replaced or removed; those of the store.
  Result<object::PutOptions> NextOptions(const object::Call& call);

 private:
  Writer& writer_;
};

}  // namespace millrace::vfs
