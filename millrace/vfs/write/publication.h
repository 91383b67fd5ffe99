// One attempt to publish the content of a Writer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "millrace/base/result.h"
#include "millrace/object/store.h"

namespace millrace::vfs {

class Writer;

/// One attempt to publish. A content of one part is sent by one Put. For a longer content, completes the upload of its
/// parts; ranges that the base also has are copied within the store. Both requests are conditional on the version that
/// the content builds on.
///
/// REQUIRES: the caller has the turn of the writer (Writer::TakeTurn), and does not hold its mutex. So content and base
/// do not change; metadata may change meanwhile. For one thread and one use.
class Publication {
 public:
  Publication(Writer& writer, const object::Call& call);
  Publication(const Publication&) = delete;
  Publication& operator=(const Publication&) = delete;

  /// Publishes the content, makes the published version the writer's base, and calls Writer::Start::on_published.
  /// Blocks on the store. Errors: kAlreadyExists if the key must not exist and does; kStale if another client replaced
  /// or removed the base; those of the store. After an error the content is unchanged, and another attempt may be made.
  Status PublishContent();

 private:
  Result<std::string> Send();
  Result<std::string> PutWhole();
  Result<std::string> PutParts();
  void Expect(std::string etag);
  std::optional<std::string> FindPublished();
  bool HasSameBytes(const std::string& key, const std::string& etag);
  Error Explain(const Error& failure) const;
  void Commit(std::string etag);

  Writer& writer_;
  const object::Call& call_;

  // Constant after construction: the content as it is during the attempt.
  std::uint64_t size_ = 0;
  std::string base_etag_;         ///< the version that the content builds on; empty: none
  bool exclusive_ = false;        ///< the key must not exist
  bool may_be_published_ = true;  ///< an earlier attempt may have published the content already
  bool whole_ = false;            ///< one Put
};

}  // namespace millrace::vfs
