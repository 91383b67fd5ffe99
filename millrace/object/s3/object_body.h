// Understands the answers of S3 to requests for objects.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "millrace/http/client/request.h"
#include "millrace/object/body.h"
#include "millrace/object/object_info.h"
#include "millrace/object/requests.h"
#include "millrace/object/s3/requests/dispatcher.h"

namespace millrace::object::s3 {

/// Reads a decimal number that is all of the text. Returns false, and leaves `value`, if it is none.
bool ParseNumber(std::string_view text, std::uint64_t& value);
/// Returns what the headers of an answer to Head or Get say of an object. `size` is the length of the body.
ObjectInfo InfoFromHeaders(std::string key, const http::Headers& headers);
/// Sets the header Range.
void SetRange(const ByteRange& range, http::Headers& headers);

/// The range of an answer: "bytes 10-19/1000".
struct ContentRange {
  std::uint64_t first = 0, last = 0, total = 0;
};
/// Returns nothing if the text is no range.
std::optional<ContentRange> ParseContentRange(std::string_view text);

/// Copies bytes into the caller's memory.
class BufferSink final : public Sink {
 public:
  /// `into` must outlive this.
  explicit BufferSink(MutableByteSpan into) : into_(into) {}
  void Begin(const ObjectInfo&) override { first_.reset(); }
  Status Take(std::uint64_t offset, ByteSpan bytes) override;
  ByteSpan into() const { return into_; }

 private:
  const MutableByteSpan into_;
  std::optional<std::uint64_t> first_;  ///< the offset of the first byte
};

/// The body of a Get, across tries. Passes the bytes that were asked for to a Sink; the bytes of an answer with another
/// range do not count. With GetOptions::if_match, a try goes on where the connection of the one before broke, because
/// some networks and servers never carry an answer to its end.
class ObjectBody final : public http::BodySink {
 public:
  /// `limit`: of all bytes. `sink` must outlive this.
  ObjectBody(Sink& sink, const GetOptions& options, std::uint64_t limit)
      : sink_(sink), asked_(options.range), if_match_(options.if_match), limit_(limit) {}

  void Begin(const http::Headers& headers) override;
  Status Take(std::uint64_t offset, ByteSpan bytes) override;
  /// Makes `operation` ask for the bytes that are missing, after a try that got no whole answer. Returns whether that
  /// try brought enough to count as progress.
  bool GoOn(Operation& operation);

  /// Checks that the whole answer to the last try is the one that was asked for.
  /// Errors: kUnsupported if the endpoint ignores ranges; kCorrupt if the answer has other bytes.
  Status Check(const http::Response& response);
  /// Returns the result of the Get, from the whole answer to the last try.
  GetResult ResultOf(std::string key, const http::Response& response) const;
  /// Returns the headers of the answer that the body begins with.
  const http::Headers& first_headers() const { return first_headers_; }
  /// Returns whether a proxy may have compressed the answer: its length is not that of the object, and its headers
  /// announce an encoding, but no length, as S3 does.
  bool MayBeCompressed(const http::Response& response) const;
  /// Returns whether the body is a whole object.
  bool IsWhole(const http::Response& response) const;

 private:
  std::optional<ByteRange> range() const;
  Sink& sink_;
  const std::optional<ByteRange> asked_;
  const std::string if_match_;
  const std::uint64_t limit_;
  std::uint64_t before_ = 0;    ///< bytes of earlier tries
  std::uint64_t received_ = 0;  ///< bytes of this try
  bool has_range_ = true, has_version_ = true, may_go_on_ = false;
  http::Headers first_headers_;
};

}  // namespace millrace::object::s3
